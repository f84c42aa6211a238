/// New torch tensors, by one of two ways: `INTEROP_TORCH_RESULTS` chooses, else the quickest that is safe.
///
///   shim     torch's stable C functions allocate. What makes a Python object of the tensor is official from torch 2.14
///            on; before that it is a private C++ function, called in the minor versions alone that it was tested with.
///   python   `torch.empty_strided`, called from C.
///
/// The allocator of the DLPack exchange API is none: its tensors are somebody else's memory to torch, which
/// `record_stream` does not hold and `resize_` refuses.
#include "exchange/routes/torch_empty.h"

#include <atomic>
#include <optional>

#include "exchange/routes/torch.h"
#include "exchange/routes/torch_symbols.h"

namespace interop::exchange {
namespace {

constexpr const char* kSwitch = "INTEROP_TORCH_RESULTS";

constexpr int kFirstSilent = 13;  // before, a C function that fails writes to stderr

const Lookup kEmptyStrided("torch", "empty_strided");
const Lookup kTorchDevice("torch", "device");
const Lookup kTorch("torch", "__dict__");
const Lookup kFunctionModes("torch", "_C._len_torch_function_stack");
const Lookup kWithoutModes("torch", "_C.DisableTorchFunction");
const Fact kDataPtr("torch", "Tensor", "data_ptr");

// ---- torch's C functions ----

using Handle = struct AtenTensorOpaque*;  // points to an at::Tensor

struct Shim {
  int32_t (*empty_strided)(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                           int32_t device_type, int32_t device, Handle* made);
  int32_t (*data_ptr)(Handle, void** data);
  int32_t (*destroy)(Handle);
  int32_t (*to_pyobject)(Handle, void* type, void** object);  // official, of 2.14; else null, and
  PyObject* (*wrap)(Handle);                                  // THPVariable_Wrap(const at::TensorBase&)
  int* log_level;  // what keeps a failed call from writing to stderr; null where it writes nothing
  int32_t cpu, cuda;
};

/// False if this torch has not all of the functions, or was not tested.
bool find_shim(Shim& shim, const TorchVersion& version) {
  const TorchLibrary cpu("libtorch_cpu.so"), python("libtorch_python.so"), c10("libc10.so");
  int32_t (*cpu_type)() = nullptr;
  int32_t (*cuda_type)() = nullptr;
  const bool allocates =
      cpu.find(shim.empty_strided, "aoti_torch_empty_strided") && cpu.find(shim.data_ptr, "aoti_torch_get_data_ptr") &&
      cpu.find(shim.destroy, "aoti_torch_delete_tensor_object") && cpu.find(cpu_type, "aoti_torch_device_type_cpu") &&
      cpu.find(cuda_type, "aoti_torch_device_type_cuda");
  if (!allocates) return false;
  shim.cpu = cpu_type();
  shim.cuda = cuda_type();
  shim.wrap = nullptr;
  shim.log_level = nullptr;
  if (cpu.find(shim.to_pyobject, "torch_tensor_to_pyobject")) return true;
  if (!is_tested(version) || !python.find(shim.wrap, "_Z16THPVariable_WrapRKN2at10TensorBaseE")) return false;
  return version.minor >= kFirstSilent || c10.find(shim.log_level, "FLAGS_caffe2_log_level");
}

// ---- which way ----

struct Way {
  Shim shim{};
  bool has_shim = false;
  const char* text = "torch.empty_strided";
};

Way choose_way() {
  Way way;
  const TorchVersion version = torch_version();
  const std::string asked = torch_choice(kSwitch);
  if (asked == "python") return way;
  way.has_shim = version.major == 2 && find_shim(way.shim, version);
  if (way.has_shim) way.text = "torch's C functions";
  if (!way.has_shim && asked == "shim") refuse_choice(kSwitch, version);
  return way;
}

/// Decided once, but not by a static's initialiser: a thread that waits for that would keep the GIL.
const Way& way() {
  static std::atomic<const Way*> chosen{nullptr};
  const Way* known = chosen.load(std::memory_order_acquire);
  if (known) return *known;
  const auto* made = new Way(choose_way());
  if (chosen.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

// ---- torch.empty_strided ----

constexpr int kCodes = kDLFloat4_e2m1fn + 1;
constexpr int kSizes = 5;  // 1 to 16 bytes

/// Something for each dtype, found when it is first asked for.
template <class T>
struct PerDtype {
  T values[kCodes][kSizes] = {};
  T& operator[](DLDataType dtype) {
    int size = 0;
    for (int64_t bytes = item_bytes(dtype); bytes > 1; bytes /= 2) ++size;
    return values[dtype.code][size];
  }
};

nb::handle torch_dtype(DLDataType dtype) {
  static PerDtype<PyObject*> known;
  PyObject*& object = known[dtype];
  if (!object) {
    object = Py_XNewRef(PyDict_GetItemString(kTorch.get().ptr(), dtype_name(dtype).c_str()));
    if (!object) throw TypeError("interop: this torch has no dtype " + dtype_name(dtype));
  }
  return object;
}

nb::object torch_device(DLDevice device) {
  constexpr int kMost = 64;
  static PyObject* known[kMost + 1];  // the host's last
  const bool on_cpu = device.device_type == kDLCPU;
  const auto make = [&] { return on_cpu ? kTorchDevice.get()("cpu") : kTorchDevice.get()("cuda", device.device_id); };
  if (!on_cpu && device.device_id >= kMost) return make();
  PyObject*& object = known[on_cpu ? kMost : device.device_id];
  if (!object) object = make().release().ptr();
  return nb::borrow(object);
}

void* data_of(nb::handle tensor) { return reinterpret_cast<void*>(static_cast<uintptr_t>(to_int64(kDataPtr(tensor)))); }

Made make_by_python(const Shape& shape, const int64_t* strides, DLDataType dtype, DLDevice device) {
  // A mode would see a call of torch's that the user has not made.
  std::optional<Within> without_modes;
  if (to_int64(kFunctionModes.get()()) != 0) without_modes.emplace(kWithoutModes.get()());
  static PyObject* names = nullptr;
  if (!names) names = nb::make_tuple("dtype", "device").release().ptr();
  const nb::object sizes = shape_tuple(shape), steps = shape_tuple(strides, shape.ndim), where = torch_device(device);
  PyObject* arguments[] = {sizes.ptr(), steps.ptr(), torch_dtype(dtype).ptr(), where.ptr()};
  PyObject* tensor = PyObject_Vectorcall(kEmptyStrided.get().ptr(), arguments, 2, names);
  if (!tensor) nb::raise_python_error();
  Made made{nb::steal(tensor), nullptr};
  try {
    made.data = data_of(made.object);
  } catch (const nb::python_error&) {  // torch.func's wrapper has no memory
    made.object = unwrapped(std::move(made.object));
    made.data = data_of(made.object);
  }
  return made;
}

// ---- by the C functions ----

int32_t dtype_code(DLDataType dtype) {
  struct Known {
    bool looked = false;
    int32_t code = -1;
  };
  static PerDtype<Known> known;
  Known& entry = known[dtype];
  if (!entry.looked) {
    int32_t (*code)() = nullptr;
    if (TorchLibrary("libtorch_cpu.so").find(code, ("aoti_torch_dtype_" + dtype_name(dtype)).c_str()))
      entry.code = code();
    entry.looked = true;
  }
  return entry.code;
}

/// While such an object lives, torch logs only what ends the process. Made and destroyed with the GIL.
class Quiet {
 public:
  explicit Quiet(int* level) : level_(level) {
    if (!level_ || count_++ > 0) return;
    before_ = *level_;
    *level_ = kFatal;
  }
  ~Quiet() {
    if (level_ && --count_ == 0) *level_ = before_;
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  static constexpr int kFatal = 3;
  static inline int count_ = 0, before_ = 0;
  int* level_;
};

/// A null object where torch refuses: the C functions do not say why.
Made make_by_shim(const Shim& shim, const Shape& shape, const int64_t* strides, DLDataType dtype, DLDevice device) {
  const int32_t code = dtype_code(dtype);
  if (code < 0) return {};
  const bool on_cpu = device.device_type == kDLCPU;
  Handle handle = nullptr;
  Made made;
  {
    const Quiet quiet(shim.log_level);
    if (shim.empty_strided(shape.ndim, shape.sizes, strides, code, on_cpu ? shim.cpu : shim.cuda, device.device_id,
                           &handle) != 0) {
      return {};
    }
    void* object = nullptr;
    if (shim.data_ptr(handle, &made.data) == 0) {
      if (shim.wrap) {
        object = shim.wrap(handle);
      } else if (shim.to_pyobject(handle, nullptr, &object) != 0) {
        object = nullptr;
      }
    }
    shim.destroy(handle);
    made.object = nb::steal(static_cast<PyObject*>(object));
  }
  if (!made.object.is_valid()) PyErr_Clear();
  return made;
}

}  // namespace

Made new_tensor(const Shape& shape, DLDataType dtype, DLDevice device) {
  int64_t strides[kMaxDims];
  compact_strides(shape.sizes, shape.ndim, strides);
  const Way& chosen = way();
  if (chosen.has_shim) {
    Made made = make_by_shim(chosen.shim, shape, strides, dtype, device);
    if (made.object.is_valid()) return made;
  }
  return make_by_python(shape, strides, dtype, device);
}

const char* new_tensor_way() { return way().text; }

}  // namespace interop::exchange
