/// How the arrays of one type are read and made: one `Route` for each array library and protocol, found by type.
#pragma once

#include "exchange/operand.h"
#include "exchange/python.h"

namespace interop::exchange {

/// An array that a library made for the result of a call.
struct Made {
  nb::object object;
  void* data = nullptr;  ///< compact, row-major
};

/// What an array is to a library that traces functions: JAX, which computes the calls of its own arrays by itself.
enum class Tracing : uint8_t {
  none,      ///< the library traces nothing
  concrete,  ///< an array with values
  tracer     ///< what stands for an array while a function is traced
};

/// One way into the package. Stateless: an instance lives for ever and may be used from any thread.
///
/// The steps of a call: `enter` each library; `inspect` every argument; decide the device and the stream; `acquire`
/// every argument for that stream; `empty` for the result; launch; `hand_over`.
class Route {
 public:
  virtual ~Route() = default;

  /// Whose arrays these are: "torch", "cupy"; "interop" for arrays of no known library, whose results are ours.
  virtual const char* library() const = 0;
  /// The protocol that reads them, as `interop info` prints it.
  virtual const char* protocol() const = 0;
  /// May the arrays be written to at all? JAX's may not.
  virtual bool writable() const { return true; }
  virtual Tracing tracing() const { return Tracing::none; }
  /// Are these torch's tensors, to which gradients, modes and transforms belong?
  virtual bool is_torch() const { return false; }

  /// For the first of such arrays in a call, at least: refuses states of the library in which a pointer would not do.
  virtual void enter(Operand& /*operand*/) const {}
  /// Fills `tensor.device`, and all the rest if that needs no stream. Throws for what cannot be an operand.
  virtual void inspect(Operand& operand) const = 0;
  /// Makes the array ready on `stream` (null for a host call) and completes the operand. By default all is done.
  virtual void acquire(Operand& /*operand*/, cudaStream_t /*stream*/) const {}

  /// Told after the launch that `stream` now uses the operand's memory.
  virtual void used(Operand& /*operand*/, cudaStream_t /*stream*/) const {}

  /// Told once the operand's memory has been written to, or its writing is queued.
  virtual void written(Operand& operand) const {
    if (counts_writes()) count_write(operand.object);
  }
  /// Does the library count the writes to an array? Then those through views that interop made of it are counted, too.
  virtual bool counts_writes() const { return false; }
  virtual void count_write(nb::handle /*array*/) const {}
  virtual int64_t write_count(nb::handle /*array*/) const { return 0; }
  /// Throws if the library lets nobody write to `array` now, be it the operand or what the operand is a view of.
  virtual void check_write(const Operand& /*operand*/, nb::handle /*array*/) const {}

  /// Is what was acquired, on `stream`, the memory of the caller's array itself? Asked before a view is made of it.
  virtual bool is_own_memory(const Operand& /*operand*/, cudaStream_t /*stream*/) const { return true; }
  /// What keeps the memory of `array` alive, whatever becomes of the object itself.
  virtual nb::object owner(nb::handle array) const { return nb::borrow(array); }
  /// The same for a view, which may live long.
  virtual nb::object view_owner(nb::handle array) const { return owner(array); }
  /// Throws if the memory that such an owner keeps is no longer at `data`.
  virtual void check_kept(nb::handle /*owner*/, const void* /*data*/) const {}
  /// What `explain` says of where `empty` gets its arrays.
  virtual std::string allocator() const { return std::string(library()) + "'s own"; }

  /// Do calls led by such an array run on our own stream of this thread and device?
  virtual bool own_stream() const { return false; }
  /// The stream on which the library itself would work now on `device`; false if it has no such notion.
  virtual bool current_stream(int /*device*/, cudaStream_t* /*stream*/) const { return false; }

  /// A new array of the library; `foreign` says that `stream` is not the library's current one.
  /// The default is interop's own array.
  virtual Made empty(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream, bool foreign) const;
  /// Turns what `empty` made into what the caller gets, once the work is queued on `stream`.
  virtual nb::object hand_over(nb::object made, cudaStream_t stream) const;
};

/// The route of a type, looked at once and then cached. Throws TypeError, naming the argument, for what is no array.
const Route& route_of(nb::handle object, const char* function, const char* name);
/// The same, null where there is none.
const Route* find_route(nb::handle object);
/// Throws the TypeError of `route_of`.
[[noreturn]] void refuse_no_array(nb::handle object, const char* function, const char* name);

/// The route of a type without what `interop.register` was told; null where there is none.
const Route* built_in_route(PyTypeObject* type);
/// The same of an object, which may have a protocol that its type has not.
const Route* built_in_route_of(nb::handle object);
/// The protocol by which an operand was read: that of the object itself where `export` left it to that.
inline const char* protocol_of(const Operand& operand) {
  const bool by_itself = operand.exported.is_valid() && operand.exported.is(operand.object);
  return (by_itself ? operand.exported_route : operand.route)->protocol();
}
/// Is the type itself, not a base of it, an array type that interop knows by name?
bool is_known_library(PyTypeObject* type);
/// Looks again at every type under `base`, which is registered, that was looked at before.
void refresh_routes(PyTypeObject* base);
/// How often that was done. Routes that were found between two equal counts are of one moment.
unsigned registration_count();

// One definition each, in the file of that name.
const Route& numpy_route();
const Route& torch_route();
const Route& torch_subclass_route();
const Route& cupy_route();
const Route& numba_route();
const Route& jax_array_route();
const Route& jax_tracer_route();
const Route& warp_route();
const Route& tensorflow_route();
const Route& tvm_ffi_route();
const Route& paddle_route(const DLPackExchangeAPI& api);
const Route& array_route();
const Route& dlpack_route();
const Route& capsule_route();
const Route& cai_route();
const Route& buffer_route();

}  // namespace interop::exchange
