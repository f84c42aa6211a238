/// Paddle tensors, by the DLPack C exchange API (Paddle 3.2 and later; earlier ones by `__dlpack__`).
#include "exchange/closing.h"
#include "exchange/routes/exchange_api.h"

namespace interop::exchange {
namespace {

const Name kStopGradient("stop_gradient");
const Lookup kIsGradEnabled("paddle", "is_grad_enabled");

/// The exchange API leaves out the check that Paddle's own `__dlpack__` makes.
class PaddleRoute final : public ExchangeApiRoute {
 public:
  explicit PaddleRoute(const DLPackExchangeAPI& api) : ExchangeApiRoute(api, "paddle") {}

  void enter(Operand& operand) const override { enter_foreign(operand.function, "Paddle"); }
  void inspect(Operand& operand) const override {
    if (attribute(operand.object, kStopGradient).is(Py_False) && nb::cast<bool>(kIsGradEnabled.get()())) {
      throw BufferError(operand.label() + " has stop_gradient=False, and interop has no derivative to record; pass " +
                        operand.name + ".detach(), or call under paddle.no_grad()");
    }
    ExchangeApiRoute::inspect(operand);
  }
};

}  // namespace

const Route& paddle_route(const DLPackExchangeAPI& api) {
  static const PaddleRoute route(api);
  return route;
}

}  // namespace interop::exchange
