/// `interop.Array`: a typed view of memory that belongs to no array library, or to any of them.
#pragma once

#include <interop/cuda/driver.h>

#include <memory>
#include <vector>

#include "exchange/python.h"
#include "exchange/readers.h"
#include "exchange/route.h"

namespace interop::exchange {

/// The value behind `interop.Array`. `memory` owns the bytes; every export shares it, so views outlive the array.
struct Array {
  std::shared_ptr<void> memory;
  void* data = nullptr;
  DLDevice device{kDLCPU, 0};
  DLDataType dtype{};
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements
  bool read_only = false;
  cudaStream_t stream = nullptr;     ///< where it was last used; null for host memory
  cuda::Event last_use;              ///< passed when that use is done; empty if there was none
  std::shared_ptr<Readers> readers;  ///< of device memory of our own

  DLTensor tensor() const;
  bool on_host() const { return device.device_type == kDLCPU; }
  /// `waiter` waits for the last use.
  void make_wait(cudaStream_t waiter) const;
  /// Notes that work using the array was just queued on `stream`.
  void used_on(cudaStream_t stream);
};

/// A new array: 64-byte aligned host memory, or device memory of the current device ordered on `stream`.
/// Written by the caller before anybody else sees it.
Array new_array(const Shape& shape, DLDataType dtype, DLDevice device, cudaStream_t stream);
/// An `interop.Array` on the operand's memory, which keeps the operand's object alive. Host memory only.
nb::object view_of(const Operand& operand);

/// `__dlpack__`: keywords as the standard has them, None where they were not given.
nb::object export_dlpack(const Array& array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                         nb::handle copy);
/// `__cuda_array_interface__`, version 3.
nb::dict export_cai(const Array& array);
/// Py_bf_getbuffer and Py_bf_releasebuffer of the type.
int get_buffer(PyObject* self, Py_buffer* view, int flags);
void release_buffer(PyObject* self, Py_buffer* view);

}  // namespace interop::exchange
