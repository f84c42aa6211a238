/// The DLPack C exchange API (DLPack 1.3): a table of functions on an array's type, and the route of any such type.
#pragma once

#include <string>

#include "exchange/routes/dlpack.h"

namespace interop::exchange {

/// The table that a type carries, in a version that we speak; null if there is none. It lives as long as the process.
const DLPackExchangeAPI* find_exchange_api(nb::handle type);

/// A new compact array from the table's allocator. Throws the producer's own error.
Made allocate_by(const DLPackExchangeAPI& api, const Shape& shape, DLDataType dtype, DLDevice device);

/// Arrays whose type has such a table. One route for each table: its address tells libraries apart.
class ExchangeApiRoute : public Route {
 public:
  ExchangeApiRoute(const DLPackExchangeAPI& api, std::string library) : api_(api), library_(std::move(library)) {}
  const char* library() const override { return library_.c_str(); }
  const char* protocol() const override { return "__dlpack_c_exchange_api__"; }

  void inspect(Operand& operand) const override;
  bool current_stream(int device, cudaStream_t* stream) const override;
  Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const override;

 private:
  const DLPackExchangeAPI& api_;
  const std::string library_;
};

/// The route of a type that has a table; made once for each table, and never freed.
const Route& exchange_api_route(nb::handle type, const DLPackExchangeAPI& api);

}  // namespace interop::exchange
