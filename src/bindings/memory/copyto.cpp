/// `interop.copyto`: the elements of one array into another, of any libraries, wherever the two lie.
#include <interop/call.h>
#include <interop/cuda/graph.h>
#include <interop/cuda/memory.h>
#include <interop/profile.h>

#include "bindings/bindings.h"
#include "bindings/elementwise/pass.h"
#include "bindings/frame.h"
#include "bindings/memory/copies.h"
#include "bindings/scalars.h"
#include "exchange/array/array.h"
#include "exchange/closing.h"
#include "exchange/overlap.h"
#include "exchange/place.h"
#include "exchange/routes/buffer.h"

namespace interop::bindings {
namespace {

using exchange::Lookup;
using exchange::Place;

const Lookup kNumpyCopyto("numpy", "copyto");
const Lookup kAsarray("numpy", "asarray");
const Lookup kAscontiguousarray("numpy", "ascontiguousarray");

Argument written(const CopyNames& names, nb::handle dst) { return {names.dst, dst, Access::write}; }
Argument read(const CopyNames& names, nb::handle src) { return {names.src, src}; }
CallOptions options(nb::handle stream) {
  CallOptions given;
  given.stream = stream;
  given.may_overlap = true;
  return given;
}

void copy_by_numpy(nb::handle to, nb::handle from) { kNumpyCopyto.get()(to, from, nb::arg("casting") = "unsafe"); }

/// The same, noted as a copy of `bytes`.
void transfer_by_numpy(nb::handle to, nb::handle from, size_t bytes) {
  const profile::Stopwatch watch;
  copy_by_numpy(to, from);
  watch.note(profile::What::transfer, profile::kHostToHost, bytes);
}

/// New memory of the host, of this shape.
nb::object host_array(const DLTensor& like, DLDataType dtype) {
  Shape shape;
  shape.ndim = like.ndim;
  std::copy(like.shape, like.shape + like.ndim, shape.sizes);
  return nb::cast(exchange::new_array(shape, dtype, {kDLCPU, 0}, nullptr));
}
exchange::Array& array_of(const nb::object& array) { return nb::cast<exchange::Array&>(array); }

void refuse_capture(const CopyNames& names, const Call& call, const char* name) {
  if (!cuda::is_capturing(call.stream())) return;
  throw ValueError(std::string(names.function) + ": " + name + " is in pageable host memory, and the stream is being " +
                   "captured into a CUDA graph; accepted: pinned memory, or a copy outside the capture");
}

// ---- on the host ----

void copy_on_host(const CopyNames& names, nb::handle dst, nb::handle src, nb::handle stream) {
  Call call(names.function, {written(names, dst), read(names, src)}, options(stream));
  check_copy(names, call.tensor(0), call.tensor(1));
  transfer_by_numpy(call.numpy(0), call.numpy(1), byte_count(call.tensor(0), call.tensor(0).dtype));
  call.hand_over();
}

// ---- on one device, which also reaches pinned memory ----

/// Queues a copy of `from` into `to`, both for the device of the call.
void queue_on_device(Call& call, const DLTensor& to, const DLTensor& from) {
  const DeviceCopy copy(to, from);
  if (copy.is_in_place() || !exchange::share_memory(to, from)) {
    return call.launch([&](cudaStream_t s) { copy.queue(s); });
  }
  const CompactTensor beside(from, from.dtype, {kDLCUDA, call.device()}, call.workspace(byte_count(from, from.dtype)));
  const DeviceCopy first(*beside, from), second(to, *beside);
  call.launch([&](cudaStream_t s) {
    first.queue(s);
    second.queue(s);
  });
}

/// `is_awaited`: nobody else would wait before the host reads what is written, or writes to what is read.
void copy_on_device(const CopyNames& names, nb::handle dst, nb::handle src, nb::handle stream, bool is_awaited) {
  Call call(names.function, {written(names, dst), read(names, src)}, options(stream));
  check_copy(names, call.tensor(0), call.tensor(1));
  check_conversion(names, call.tensor(0).dtype, call.tensor(1).dtype);
  const auto rows = as_rows(call.tensor(0), call.tensor(1));
  if (rows && (rows->to_host || rows->from_host)) {
    call.launch([&](cudaStream_t s) { rows->queue(s); });
  } else {
    on_own_frame([&] { queue_on_device(call, call.tensor(0), call.tensor(1)); });
  }
  if (is_awaited && !cuda::is_capturing(call.stream())) call.launch([](cudaStream_t s) { cuda::synchronize(s); });
  call.hand_over();
}

// ---- between pageable memory and a device ----

void copy_to_device(const CopyNames& names, nb::handle dst, nb::handle src, nb::handle stream) {
  Call host(names.function, {read(names, src)}, options(nb::none()));
  Call device(names.function, {written(names, dst)}, options(stream));
  const DLTensor &to = device.tensor(0), &from = host.tensor(0);
  check_copy(names, to, from);
  check_conversion(names, to.dtype, from.dtype);
  refuse_capture(names, device, names.src);
  if (const auto rows = as_rows(to, from)) {
    device.launch([&](cudaStream_t s) { rows->queue(s); });
  } else {
    const size_t bytes = byte_count(from, from.dtype);
    const profile::Stopwatch watch;
    const nb::object compact = kAscontiguousarray.get()(host.numpy(0));
    if (!is_compact(from)) watch.note(profile::What::transfer, profile::kHostToHost, bytes);
    void* const sent = device.workspace(bytes);
    const CompactTensor beside(from, from.dtype, {kDLCUDA, device.device()}, sent);
    const auto data = nb::cast<uintptr_t>(compact.attr("ctypes").attr("data"));
    on_own_frame([&] {
      const DeviceCopy spread(to, *beside);
      device.launch([&](cudaStream_t s) {
        if (bytes > 0) cuda::copy(sent, reinterpret_cast<const void*>(data), bytes, s);
        spread.queue(s);
      });
    });
  }
  device.hand_over();
}

void copy_to_host(const CopyNames& names, nb::handle dst, nb::handle src, nb::handle stream) {
  Call host(names.function, {written(names, dst)}, options(nb::none()));
  Call device(names.function, {read(names, src)}, options(stream));
  const DLTensor &to = host.tensor(0), &from = device.tensor(0);
  check_copy(names, to, from);
  check_conversion(names, to.dtype, from.dtype);
  refuse_capture(names, device, names.dst);
  if (const auto rows = as_rows(to, from)) {
    device.launch([&](cudaStream_t s) {
      rows->queue(s);
      cuda::synchronize(s);
    });
  } else {
    const nb::object fetched = host_array(from, to.dtype);
    const size_t bytes = byte_count(from, to.dtype);
    const CompactTensor beside(from, to.dtype, {kDLCUDA, device.device()}, device.workspace(bytes));
    on_own_frame([&] {
      const DeviceCopy gathered(*beside, from);
      device.launch([&](cudaStream_t s) {
        gathered.queue(s);
        if (bytes > 0) cuda::copy(array_of(fetched).data, (*beside).data, bytes, s);
        cuda::synchronize(s);
      });
    });
    transfer_by_numpy(host.numpy(0), fetched, byte_count(to, to.dtype));
  }
  device.hand_over();
  host.hand_over();
}

// ---- between two devices ----

/// Each call has a stream of its own device; the copy is on the target's.
void copy_between(const CopyNames& names, nb::handle dst, nb::handle src, nb::handle stream) {
  Call source(names.function, {read(names, src)}, options(nb::none()));
  const DLTensor& from = source.tensor(0);
  const size_t bytes = byte_count(from, from.dtype);
  const void* sent = from.data;
  if (!is_compact(from)) {
    const CompactTensor gathered(from, from.dtype, {kDLCUDA, source.device()}, source.workspace(bytes));
    on_own_frame([&] { queue_on_device(source, *gathered, from); });
    sent = (*gathered).data;
  }
  {
    Call target(names.function, {written(names, dst)}, options(stream));
    const DLTensor& to = target.tensor(0);
    check_copy(names, to, from);
    check_conversion(names, to.dtype, from.dtype);
    {
      const cuda::DeviceGuard guard(source.device());
      cuda::wait_stream(target.stream(), source.stream());
    }
    const bool is_direct = is_compact(to) && to.dtype == from.dtype && element_count(to) == element_count(from);
    void* const received = is_direct ? to.data : target.workspace(bytes);
    const CompactTensor beside(from, from.dtype, {kDLCUDA, target.device()}, received);
    on_own_frame([&] {
      const DeviceCopy spread(to, *beside);
      target.launch([&](cudaStream_t s) {
        if (bytes > 0) cuda::copy_between(received, target.device(), sent, source.device(), bytes, s);
        if (!is_direct) spread.queue(s);
      });
    });
    cuda::wait_stream(source.stream(), target.stream());
    target.hand_over();
  }
  source.hand_over();
}

// ---- of one value ----

/// A scalar as an element of `to`. Throws TypeError where its kind has no place in it, as 0.5 in an integer.
ScalarValue element_of(const CopyNames& names, nb::handle value, Kind kind, const DLTensor& to) {
  const DLDataType dtype = to.dtype;
  if (kind == Kind::numpy_scalar) {
    const nb::object array = kAsarray.get()(value);
    const Call given(names.function, {read(names, array)}, options(nb::none()));
    check_copy(names, to, given.tensor(0));
    return value_by_numpy(array, dtype);
  }
  const bool is_bit =
      dtype.code == kDLBool && kind == Kind::integer && (value.equal(nb::int_(0)) || value.equal(nb::int_(1)));
  if (kind > kind_of(dtype) && !is_bit) {
    throw TypeError(std::string(names.function) + ": " + names.src + " is " + exchange::shown(value) + ", and " +
                    names.dst + " is " + dtype_name(dtype) + "; accepted: a scalar of that kind");
  }
  return is_served(dtype) ? value_of(names.function, names.src, value, kind, dtype) : value_by_numpy(value, dtype);
}

void fill(const CopyNames& names, nb::handle dst, nb::handle value, Kind kind, nb::handle stream) {
  Call call(names.function, {written(names, dst)}, options(stream));
  const DLTensor& to = call.tensor(0);
  const ScalarValue element = element_of(names, value, kind, to);
  if (call.on_host()) {
    copy_by_numpy(call.numpy(0), value);
  } else {
    on_own_frame([&] {
      const DeviceCopy copy(to, element);
      call.launch([&](cudaStream_t s) { copy.queue(s); });
    });
  }
  call.hand_over();
}

void copy(const CopyNames& names, nb::handle dst, nb::handle src, nb::handle stream) {
  const Kind kind = kind_of(src);
  if (kind != Kind::array) return fill(names, dst, src, kind, stream);
  Place to = exchange::find_place(dst, names.function, names.dst),
        from = exchange::find_place(src, names.function, names.src);
  const bool to_gpu = to.gpu >= 0, from_gpu = from.gpu >= 0;
  if (!to_gpu && !from_gpu) return copy_on_host(names, dst, src, stream);
  if (to_gpu && from_gpu && to.gpu != from.gpu) return copy_between(names, dst, src, stream);
  to.ask_driver();
  from.ask_driver();
  if ((to_gpu || to.is_pinned) && (from_gpu || from.is_pinned)) {
    const bool is_foreign = (to.is_pinned && !to.is_ours) || (from.is_pinned && !from.is_ours);
    return copy_on_device(names, dst, src, stream, is_foreign && stream.is_none());
  }
  return to_gpu ? copy_to_device(names, dst, src, stream) : copy_to_host(names, dst, src, stream);
}

}  // namespace

void copy_into(const CopyNames& names, nb::handle dst, nb::handle src) { copy(names, dst, src, nb::none()); }

nb::object host_values(nb::handle array) {
  const exchange::Array& x = nb::cast<const exchange::Array&>(array);
  if (x.host_readable()) return exchange::numpy_array(array);
  if (cuda::own_stream_is_captured()) {  // the copy would be a part of the graph
    const cuda::DeviceGuard guard(x.gpu);
    exchange::refuse_host_wait(cuda::own_stream());
  }
  const nb::object copied = host_array(x.tensor(), x.dtype);
  copy_into({}, copied, array);
  return exchange::numpy_array(copied);
}

void bind_copyto(nb::module_& m) {
  m.def(
      "copyto",
      [](nb::handle dst, nb::handle src, nb::handle stream, const char* function, const char* dst_name,
         const char* src_name, bool to_any_kind) {
        const exchange::CallGuard guard;
        exchange::as_call(function, false,
                          [&] { copy({function, dst_name, src_name, to_any_kind}, dst, src, stream); });
      },
      nb::arg("dst").none(), nb::arg("src").none(), nb::arg("stream").none(), nb::arg("function"), nb::arg("dst_name"),
      nb::arg("src_name"), nb::arg("to_any_kind") = false,
      nb::sig("def copyto(dst: typing.Any, src: typing.Any, stream: typing.Any, function: str, dst_name: str, "
              "src_name: str, to_any_kind: bool = False) -> None"),
      "The elements of `src`, an array or a scalar, into `dst`; errors have the names.");
}

}  // namespace interop::bindings
