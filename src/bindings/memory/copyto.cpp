/// `interop.copyto`: the elements of one array into another, of any libraries, wherever the two lie.
#include <interop/call.h>
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

constexpr const char* kFunction = "interop.copyto";

const Lookup kNumpyCopyto("numpy", "copyto");
const Lookup kAsarray("numpy", "asarray");
const Lookup kAscontiguousarray("numpy", "ascontiguousarray");

Argument written(nb::handle dst) { return {"dst", dst, Access::write}; }
Argument read(nb::handle src) { return {"src", src}; }
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

void refuse_capture(const Call& call, const char* name) {
  if (!cuda::is_capturing(call.stream())) return;
  throw ValueError(std::string(kFunction) + ": " + name + " is in pageable host memory, and the stream is being " +
                   "captured into a CUDA graph; accepted: pinned memory, or a copy outside the capture");
}

// ---- on the host ----

void copy_on_host(nb::handle dst, nb::handle src, nb::handle stream) {
  Call call(kFunction, {written(dst), read(src)}, options(stream));
  check_copy(kFunction, call.tensor(0), call.tensor(1));
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

void copy_on_device(nb::handle dst, const Place& to, nb::handle src, nb::handle stream) {
  Call call(kFunction, {written(dst), read(src)}, options(stream));
  check_copy(kFunction, call.tensor(0), call.tensor(1));
  check_conversion(kFunction, call.tensor(0).dtype, call.tensor(1).dtype);
  const auto rows = as_rows(call.tensor(0), call.tensor(1));
  if (rows && (rows->to_host || rows->from_host)) {
    call.launch([&](cudaStream_t s) { rows->queue(s); });
  } else {
    on_own_frame([&] { queue_on_device(call, call.tensor(0), call.tensor(1)); });
  }
  const bool is_awaited = to.is_pinned && !to.is_ours && stream.is_none();  // nobody else would wait for it
  if (is_awaited && !cuda::is_capturing(call.stream())) call.launch([](cudaStream_t s) { cuda::synchronize(s); });
  call.hand_over();
}

// ---- between pageable memory and a device ----

void copy_to_device(nb::handle dst, nb::handle src, nb::handle stream) {
  Call host(kFunction, {read(src)}, options(nb::none()));
  Call device(kFunction, {written(dst)}, options(stream));
  const DLTensor &to = device.tensor(0), &from = host.tensor(0);
  check_copy(kFunction, to, from);
  check_conversion(kFunction, to.dtype, from.dtype);
  refuse_capture(device, "src");
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

void copy_to_host(nb::handle dst, nb::handle src, nb::handle stream) {
  Call host(kFunction, {written(dst)}, options(nb::none()));
  Call device(kFunction, {read(src)}, options(stream));
  const DLTensor &to = host.tensor(0), &from = device.tensor(0);
  check_copy(kFunction, to, from);
  check_conversion(kFunction, to.dtype, from.dtype);
  refuse_capture(device, "dst");
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
void copy_between(nb::handle dst, nb::handle src, nb::handle stream) {
  Call source(kFunction, {read(src)}, options(nb::none()));
  const DLTensor& from = source.tensor(0);
  const size_t bytes = byte_count(from, from.dtype);
  const void* sent = from.data;
  if (!is_compact(from)) {
    const CompactTensor gathered(from, from.dtype, {kDLCUDA, source.device()}, source.workspace(bytes));
    on_own_frame([&] { queue_on_device(source, *gathered, from); });
    sent = (*gathered).data;
  }
  {
    Call target(kFunction, {written(dst)}, options(stream));
    const DLTensor& to = target.tensor(0);
    check_copy(kFunction, to, from);
    check_conversion(kFunction, to.dtype, from.dtype);
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
        if (bytes > 0) cuda::copy(received, sent, bytes, s);
        if (!is_direct) spread.queue(s);
      });
    });
    cuda::wait_stream(source.stream(), target.stream());
    target.hand_over();
  }
  source.hand_over();
}

// ---- of one value ----

/// A Python scalar as an element of `dtype`. Throws TypeError where its kind has no place in it, as 0.5 in an integer.
ScalarValue element_of(nb::handle value, Kind kind, DLDataType dtype) {
  const bool is_bit =
      dtype.code == kDLBool && kind == Kind::integer && (value.equal(nb::int_(0)) || value.equal(nb::int_(1)));
  if (kind > kind_of(dtype) && !is_bit) {
    throw TypeError(std::string(kFunction) + ": src is " + exchange::shown(value) + ", and dst is " +
                    dtype_name(dtype) + "; accepted: a scalar of that kind");
  }
  return is_served(dtype) ? value_of(kFunction, "src", value, kind, dtype) : value_by_numpy(value, dtype);
}

void fill(nb::handle dst, nb::handle value, Kind kind, nb::handle stream) {
  Call call(kFunction, {written(dst)}, options(stream));
  const DLTensor& to = call.tensor(0);
  const ScalarValue element = element_of(value, kind, to.dtype);
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

void copy(nb::handle dst, nb::handle src, nb::handle stream) {
  const Kind kind = kind_of(src);
  if (kind == Kind::numpy_scalar) return copy(dst, kAsarray.get()(src), stream);
  if (kind != Kind::array) return fill(dst, src, kind, stream);
  const Place to = exchange::find_place(dst, kFunction, "dst"), from = exchange::find_place(src, kFunction, "src");
  const bool to_gpu = to.gpu >= 0, from_gpu = from.gpu >= 0;
  if (!to_gpu && !from_gpu) return copy_on_host(dst, src, stream);
  if (to_gpu && from_gpu && to.gpu != from.gpu) return copy_between(dst, src, stream);
  if ((to_gpu || to.is_pinned) && (from_gpu || from.is_pinned)) return copy_on_device(dst, to, src, stream);
  return to_gpu ? copy_to_device(dst, src, stream) : copy_to_host(dst, src, stream);
}

}  // namespace

void copy_into(nb::handle dst, nb::handle src, nb::handle stream) { copy(dst, src, stream); }

nb::object host_values(nb::handle array) {
  const exchange::Array& x = nb::cast<const exchange::Array&>(array);
  if (x.host_readable()) return exchange::numpy_array(array);
  const nb::object copied = host_array(x.tensor(), x.dtype);
  copy(copied, array, nb::none());
  return exchange::numpy_array(copied);
}

void bind_copyto(nb::module_& m) {
  m.def(
      "copyto",
      [](nb::handle dst, nb::handle src, nb::handle stream) {
        const exchange::CallGuard guard;
        exchange::as_call(kFunction, false, [&] { copy(dst, src, stream); });
      },
      nb::arg("dst").none(), nb::arg("src").none(), nb::arg("stream").none(),
      nb::sig("def copyto(dst: typing.Any, src: typing.Any, stream: typing.Any) -> None"),
      "The elements of `src`, an array or a scalar, into `dst`.");
}

}  // namespace interop::bindings
