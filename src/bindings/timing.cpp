/// What a call costs, measured from inside: for `interop bench overhead`.
#include <interop/call.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/matmul.h>
#include <interop/cuda/memory.h>

#include <chrono>
#include <string>

#include "bindings/bindings.h"
#include "exchange/routes/exchange_api.h"
#include "exchange/routes/torch_notes.h"
#include "ops/matmul.h"

namespace interop::bindings {
namespace {

/// What Python has these functions in.
struct Timing {};

using Clock = std::chrono::steady_clock;

constexpr const char* kFunction = "interop.matmul";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <typename Stage>
double seconds_each(int count, Stage&& stage) {
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) stage();
  return seconds_since(start) / count;
}

void require_device(const Call& call, const char* function) {
  if (call.on_host()) throw ValueError(std::string("interop: ") + function + " is for device arrays");
}

/// The seconds that one launch of `a @ b` into `out` takes on the host, with everything before it done: the floor that
/// a whole call is compared with.
double time_launch_of_matmul(nb::handle a, nb::handle b, nb::handle out) {
  Call call(kFunction, {{"a", a}, {"b", b}}, {out, nb::none(), nb::none()});
  require_device(call, "time_launch");
  const ops::MatmulResult result = ops::matmul_result(call.tensor(0), call.tensor(1), call.tensor(0).dtype);
  const Gemm gemm = ops::plan_matmul(call.tensor(0), call.tensor(1), call.output(result.shape, result.dtype));
  const cuda::MatmulPlan plan = cuda::plan_matmul(gemm, {cuda::MatmulBackend::tiled});
  const auto start = Clock::now();
  cuda::launch_matmul(gemm, plan, nullptr, call.stream());
  return seconds_since(start);
}

double time_launch(const std::string& operation, nb::handle a, nb::handle b, nb::handle out) {
  if (operation == "add") return time_launch_of_add(a, b, out);
  if (operation == "matmul") return time_launch_of_matmul(a, b, out);
  throw ValueError("interop: operation is " + operation + "; accepted: add, matmul");
}

/// The mean seconds of each stage of `a @ b`, each run `count` times by itself in the order of a call, the result
/// dropped as a caller drops it. The arrays' type has the C exchange API, as torch's has.
nb::dict time_stages(nb::handle a, nb::handle b, int count) {
  const DLPackExchangeAPI* api = exchange::find_exchange_api(a.type());
  if (!api || !api->dltensor_from_py_object_no_sync) {
    throw TypeError(
        "interop: time_stages is for arrays whose type has the DLPack C exchange API, borrowed views included");
  }
  Call call(kFunction, {{"a", a}, {"b", b}}, {});
  require_device(call, "time_stages");
  const exchange::Route& route = exchange::route_of(a, kFunction, "a");
  ops::MatmulResult result = ops::matmul_result(call.tensor(0), call.tensor(1), call.tensor(0).dtype);
  const DLTensor& c = call.output(result.shape, result.dtype);
  const Gemm gemm = ops::plan_matmul(call.tensor(0), call.tensor(1), c);
  cuda::MatmulPlan plan = cuda::plan_matmul(gemm, {});
  void* workspace = call.workspace(plan.workspace_bytes);

  const bool by_torch = route.is_torch() && exchange::find_route(b) == &route;  // as its route reads them
  const double views = seconds_each(count, [&] {
    for (nb::handle x : {a, b}) {
      DLTensor view;
      if (by_torch && exchange::view_memory(x, &view)) continue;
      if (api->dltensor_from_py_object_no_sync(x.ptr(), &view) != 0) nb::raise_python_error();
    }
  });
  const double reads = seconds_each(count, [&] {
    for (nb::handle x : {a, b}) {
      exchange::Operand operand;
      operand.function = kFunction;
      operand.name = "a";
      operand.object = x;
      operand.route = &exchange::route_of(x, kFunction, "a");
      if (x.is(a)) operand.route->enter(operand);
      operand.route->inspect(operand);
    }
  });
  const double streams = seconds_each(count, [&] {
    const cuda::DeviceGuard guard(call.device());
    cudaStream_t stream = nullptr;
    route.current_stream(call.device(), &stream);
  });
  const double plans = seconds_each(count, [&] {
    result = ops::matmul_result(call.tensor(0), call.tensor(1), call.tensor(0).dtype);
    plan = cuda::plan_matmul(ops::plan_matmul(call.tensor(0), call.tensor(1), c), {});
  });
  const double launches =
      seconds_each(count, [&] { call.launch([&](cudaStream_t s) { cuda::launch_matmul(gemm, plan, workspace, s); }); });
  const double allocations = seconds_each(count, [&] {
    exchange::Made fresh = route.empty(result.shape, result.dtype, c.device, call.stream(), false);
    route.hand_over(std::move(fresh.object), call.stream());
  });

  nb::dict stages;
  stages["import"] = views;
  stages["checks"] = reads - views;
  stages["stream"] = streams;
  stages["allocate"] = allocations;
  stages["plan"] = plans;
  stages["launch"] = launches;
  return stages;
}

/// The mean seconds of device memory of interop's own and its end, `count` times in a row.
double time_allocations(int64_t bytes, int count) {
  const cuda::DeviceGuard guard(cuda::default_device());
  const int device = cuda::default_device();
  const cudaStream_t stream = cuda::own_stream();
  return seconds_each(count, [&] {
    void* const memory = cuda::allocate(static_cast<size_t>(bytes), stream);
    cuda::release_unless_captured(memory, device, stream);
  });
}

}  // namespace

void bind_timing(nb::module_& m) {
  nb::class_<Timing>(m, "Timing", "What a call costs on the host, measured from inside: for benchmarks.")
      .def_static("launch", &time_launch, nb::arg(), nb::arg(), nb::arg(), nb::arg(),
                  nb::sig("def launch(operation: str, a: typing.Any, b: typing.Any, out: typing.Any, /) -> float"),
                  "The seconds of one launch of the kernel of \"matmul\" or \"add\".")
      .def_static("stages", &time_stages, nb::arg(), nb::arg(), nb::arg(),
                  nb::sig("def stages(a: typing.Any, b: typing.Any, count: int, /) -> dict[str, float]"),
                  "The mean seconds of each stage of a product.")
      .def_static("allocations", &time_allocations, nb::arg(), nb::arg(),
                  nb::sig("def allocations(bytes: int, count: int, /) -> float"),
                  "The mean seconds of device memory and its end, with no array and no call of Python.");
}

}  // namespace interop::bindings
