/// Do two arrays share memory? NumPy's solver looks only at addresses and strides, so it serves device memory too.
#include "exchange/overlap.h"

#include "exchange/python.h"

namespace interop::exchange {
namespace {

const Lookup kAsarray("numpy", "asarray");
const Lookup kSharesMemory("numpy", "shares_memory");
const Lookup kNamespace("types", "SimpleNamespace");

constexpr int kMaxWork = 100000;  // the solver's own unit; milliseconds at most

/// A NumPy array with the tensor's addresses. Its elements must never be read.
nb::object address_map(const DLTensor& tensor) {
  const int64_t item = item_bytes(tensor.dtype);
  // Without the dimensions that reach no other address: NumPy before 2 has no more than 32.
  int64_t sizes[kMaxDims], byte_strides[kMaxDims];
  int ndim = 0;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 1 || tensor.strides[i] == 0) continue;
    sizes[ndim] = tensor.shape[i];
    byte_strides[ndim++] = tensor.strides[i] * item;
  }
  nb::dict interface;
  interface["shape"] = shape_tuple(sizes, ndim);
  interface["strides"] = shape_tuple(byte_strides, ndim);
  interface["typestr"] = "|V" + std::to_string(item);
  interface["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.data), true);
  interface["version"] = 3;
  nb::dict keywords;
  keywords["__array_interface__"] = interface;
  return kAsarray.get()(kNamespace.get()(**keywords));
}

}  // namespace

bool share_memory(const DLTensor& x, const DLTensor& y) {
  if (!ranges_meet(byte_range(x), byte_range(y))) return false;
  try {
    nb::dict keywords;
    keywords["max_work"] = kMaxWork;
    return nb::cast<bool>(kSharesMemory.get()(address_map(x), address_map(y), **keywords));
  } catch (nb::python_error&) {
    return true;  // numpy.exceptions.TooHardError
  }
}

}  // namespace interop::exchange
