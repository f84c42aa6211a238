/// Raw DLPack capsules, and the checks that every DLTensor from outside goes through.
#include <cstring>

#include "exchange/checks.h"
#include "exchange/routes/dlpack.h"

namespace interop::exchange {
namespace {

constexpr const char* kLegacy = "dltensor";
constexpr const char* kVersioned = "dltensor_versioned";

void check_device(const Operand& operand, DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDA:
    case kDLCUDAHost:
    case kDLCUDAManaged:
      if (device.device_id < 0) malformed(operand, "device id " + std::to_string(device.device_id));
      return;
    default:
      throw TypeError(operand.label() + " lies on " + device_text(device) + "; accepted: host memory and CUDA devices");
  }
}

template <class Managed>
void destroy(void* pointer) {
  auto* managed = static_cast<Managed*>(pointer);
  if (managed->deleter) managed->deleter(managed);
}

template <class Managed>
Managed* take_over(Operand& operand, nb::handle capsule, const char* name, const char* used_name) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (!managed) nb::raise_python_error();
  if (PyCapsule_SetName(capsule.ptr(), used_name) != 0) nb::raise_python_error();
  operand.release = Release(managed, &destroy<Managed>);
  return managed;
}

void read_versioned(Operand& operand, const DLManagedTensorVersioned& managed) {
  if (managed.version.major != DLPACK_MAJOR_VERSION) {
    throw BufferError(operand.label() + ": " + type_text(operand.object) + " speaks DLPack " +
                      std::to_string(managed.version.major) + "." + std::to_string(managed.version.minor) +
                      "; accepted: version 1");
  }
  if (operand.is_output && (managed.flags & DLPACK_FLAG_BITMASK_IS_COPIED)) refuse_copy(operand);
  // Writing through a view would be lost, too, but where the copy itself is what the caller has.
  const bool is_copy = (managed.flags & DLPACK_FLAG_BITMASK_IS_COPIED) && !PyCapsule_CheckExact(operand.object.ptr());
  operand.read_only = is_copy || (managed.flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  read_dltensor(operand, managed.dl_tensor);
}

/// For what is no unused DLPack capsule: the caller's own mistake, or its producer's.
[[noreturn]] void refuse_capsule(const Operand& operand, nb::handle object) {
  const bool is_capsule = PyCapsule_CheckExact(object.ptr());
  const char* name = is_capsule ? PyCapsule_GetName(object.ptr()) : nullptr;
  PyErr_Clear();
  const bool used = name && std::strncmp(name, "used_dltensor", 13) == 0;
  if (!operand.object.is(object)) {
    throw BufferError(operand.label() + ": " + type_text(operand.object) + ".__dlpack__ returns " +
                      (used         ? std::string("a capsule that was used before")
                       : is_capsule ? std::string("a capsule named '") + (name ? name : "") + "'"
                                    : type_text(object)) +
                      "; accepted: a new capsule named 'dltensor' or 'dltensor_versioned'");
  }
  if (used) {
    throw ValueError(operand.label() + " is a DLPack capsule that was used before; pass the array itself, or make a " +
                     "new capsule for each use");
  }
  throw TypeError(operand.label() + " is a capsule named '" + (name ? name : "") +
                  "'; accepted: 'dltensor', 'dltensor_versioned'");
}

class CapsuleRoute final : public Route {
 public:
  const char* library() const override { return "interop"; }
  const char* protocol() const override { return "DLPack capsule"; }

  // A raw capsule was exported for a stream that we cannot know: it is ready on the legacy default stream at best, so
  // that is where the call goes, and its memory is held until the work there is done.
  void inspect(Operand& operand) const override {
    read_capsule(operand, operand.object);
    operand.hold = !operand.on_host();
  }
};

}  // namespace

void refuse_copy(const Operand& operand) {
  throw BufferError(operand.label() + ": " + type_text(operand.object) +
                    " hands over a copy of its memory, to which writing would be lost; accepted: an array that "
                    "shares its own");
}

void read_dltensor(Operand& operand, const DLTensor& from) {
  DLTensor& to = operand.tensor;
  check_device(operand, from.device);
  check_dtype(operand, from.dtype);
  check_ndim(operand, from.ndim);
  if (from.ndim > 0 && !from.shape) malformed(operand, "no shape");
  to.device = from.device;
  to.dtype = from.dtype;
  to.ndim = from.ndim;
  to.shape = operand.shape;
  to.strides = operand.strides;
  to.byte_offset = 0;
  for (int i = 0; i < from.ndim; ++i) operand.shape[i] = from.shape[i];
  check_sizes(operand);
  const bool is_empty = element_count(to) == 0;
  if (from.strides && !is_empty) {
    for (int i = 0; i < from.ndim; ++i) {  // one of size 1 is never used to move: the producer may have put anything
      operand.strides[i] = operand.shape[i] == 1 ? 1 : from.strides[i];
    }
    check_extent(operand);
  } else {
    compact_strides(operand.shape, to.ndim, operand.strides);
  }
  if (!from.data && !is_empty) {
    malformed(operand, "a null pointer for shape " + shape_text(to));
  }
  if (from.byte_offset > kAddressable) malformed(operand, "byte_offset " + std::to_string(from.byte_offset));
  to.data = from.data ? static_cast<char*>(from.data) + from.byte_offset : nullptr;
}

void read_managed(Operand& operand, DLManagedTensorVersioned* managed) {
  operand.release = Release(managed, &destroy<DLManagedTensorVersioned>);
  read_versioned(operand, *managed);
}

void read_capsule(Operand& operand, nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kVersioned)) {
    read_versioned(operand,
                   *take_over<DLManagedTensorVersioned>(operand, capsule, kVersioned, "used_dltensor_versioned"));
    return;
  }
  if (PyCapsule_IsValid(capsule.ptr(), kLegacy)) {
    read_dltensor(operand, take_over<DLManagedTensor>(operand, capsule, kLegacy, "used_dltensor")->dl_tensor);
    return;
  }
  refuse_capsule(operand, capsule);
}

const Route& capsule_route() {
  static const CapsuleRoute route;
  return route;
}

}  // namespace interop::exchange
