/// One call: arguments in, device and stream decided, result out.
#include <interop/call.h>

#include <algorithm>
#include <cstring>

#include "exchange/array.h"
#include "exchange/buffer.h"
#include "exchange/overlap.h"
#include "exchange/reaper.h"
#include "exchange/route.h"
#include "exchange/stream.h"

namespace interop {

using exchange::route_of;

namespace {

const exchange::Lookup kAscontiguousarray("numpy", "ascontiguousarray");
const exchange::Lookup kCopyto("numpy", "copyto");

/// Where an array would be allocated: as well aligned as any.
void* const kSomewhere = reinterpret_cast<void*>(uintptr_t{1} << 20);

bool is_none(nb::handle object) { return !object.is_valid() || object.is_none(); }

/// "float32 array of shape (2, 3) on cuda:0"
std::string describe(const Operand& operand) {
  return dtype_name(operand.tensor.dtype) + " of shape " + shape_text(operand.tensor);
}

/// The N of execution="cuda:N"; 0 for "cuda".
int execution_device(nb::handle execution, const char* function) {
  if (nb::isinstance<nb::str>(execution)) {
    const std::string text = nb::cast<std::string>(execution);
    if (text == "cuda") return 0;
    if (text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() < 9 &&
        std::all_of(text.begin() + 5, text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      return std::stoi(text.substr(5));
    }
  }
  throw ValueError(std::string(function) + ": execution is " + nb::cast<std::string>(nb::repr(execution)) +
                   "; accepted: None, 'cuda', 'cuda:0', 'cuda:1', ...");
}

/// Does the tensor fill its byte range without holes, in some order of its dimensions?
bool is_dense(const DLTensor& tensor) {
  const ByteRange range = byte_range(tensor);
  return range.end - range.begin == static_cast<uintptr_t>(element_count(tensor) * item_bytes(tensor.dtype)) &&
         !may_overlap_itself(tensor);
}

/// Is it the same array, element for element?
bool is_same(const DLTensor& x, const DLTensor& y) {
  return x.data == y.data && x.dtype == y.dtype && x.ndim == y.ndim && std::equal(x.shape, x.shape + x.ndim, y.shape) &&
         std::equal(x.strides, x.strides + x.ndim, y.strides);
}

}  // namespace

Call::Call(const char* function, const Argument* arguments, int count, const CallOptions& options)
    : function_(function),
      operands_(count + 1),
      only_looks_(options.only_looks),
      may_overlap_(options.may_overlap),
      takes_scalars_(options.takes_scalars) {
  inspect(arguments, count, options.out);
  choose_device(options.execution);
  if (on_host()) {
    if (!is_none(options.stream)) {
      throw ValueError(std::string(function_) +
                       ": stream is given, but the arrays are in host memory; accepted: None, " +
                       "or execution='cuda' with it");
    }
  } else {
    guard_.emplace(device_);
    choose_stream(options.stream);
  }
  acquire();
  if (staged_) {
    if (!may_overlap_) check_overlap();  // of the host arrays themselves
    if (!only_looks_) stage();
  }
}

Call::~Call() = default;

void Call::inspect(const Argument* arguments, int count, nb::handle out) {
  const auto add = [&](const Argument& argument) {
    const auto [name, object, is_written, may_be_out, takes_conjugated] = argument;
    if (is_written && !route_of(object, function_, name).writable()) {
      throw TypeError(std::string(function_) + ": " + name + " is " + exchange::type_text(object) +
                      ", which is immutable; accepted: None, or a writable array");
    }
    Operand& operand = operands_.add();
    ++operand_count_;
    operand.function = function_;
    operand.name = name;
    operand.object = object;
    operand.is_output = is_written;
    operand.may_be_out = may_be_out;
    operand.takes_conjugated = takes_conjugated;
    operand.route = &route_of(object, function_, name);
    if (operand_count_ == 1 || operand.route != operands_[operand_count_ - 2].route) operand.route->enter(function_);
    operand.route->inspect(operand);
  };
  for (int i = 0; i < count; ++i) add(arguments[i]);
  argument_count_ = operand_count_;
  has_out_ = !is_none(out);
  if (has_out_) add({"out", out, true});
}

// Device memory decides; pinned memory joins a device array, and alone is host memory.
void Call::choose_device(nb::handle execution) {
  const Operand* on_device = find_device_operand();
  for (int i = 0; i < operand_count_; ++i) {
    Operand& operand = operands_[i];
    if (on_device && operand.on_host()) join_host_operand(operand, *on_device);
    if (!on_device && operand.tensor.device.device_type == kDLCUDAHost) operand.tensor.device = {kDLCPU, 0};
  }
  if (on_device) device_ = on_device->tensor.device.device_id;
  if (is_none(execution)) return;

  const int wanted = execution_device(execution, function_);
  if (!on_device) {
    cuda::require_driver();
    if (wanted >= cuda::device_count()) {
      throw ValueError(std::string(function_) + ": execution is 'cuda:" + std::to_string(wanted) +
                       "'; this machine has " + std::to_string(cuda::device_count()) + " CUDA device(s)");
    }
    staged_ = true;
    device_ = wanted;
  } else if (device_ != wanted && nb::cast<std::string>(execution) != "cuda") {
    throw ValueError(std::string(function_) + ": execution is '" + nb::cast<std::string>(execution) + "' and " +
                     on_device->name + " is on " + device_text(on_device->tensor.device) +
                     "; accepted: the arrays' own device");
  }
}

/// The operand that says on which device the call runs; null for a host call. All that are on a device must agree.
const Operand* Call::find_device_operand() {
  const Operand* found = nullptr;
  for (int i = 0; i < operand_count_; ++i) {
    Operand& operand = operands_[i];
    DLDevice& device = operand.tensor.device;
    if (device.device_type == kDLCUDAManaged && operand.tensor.data) {
      device.device_id = cuda::pointer_device(operand.tensor.data).value_or(0);  // DLPack says 0 for all of them
    }
    if (device.device_type != kDLCUDA && device.device_type != kDLCUDAManaged) continue;
    if (!found || found->any_device) {
      found = &operand;
    } else if (!operand.any_device && device.device_id != found->tensor.device.device_id) {
      throw ValueError(std::string(function_) + ": " + found->name + " is on " + device_text(found->tensor.device) +
                       " and " + operand.name + " is on " + device_text(device) +
                       "; accepted: all arrays on one device");
    }
  }
  return found;
}

/// Host memory beside device arrays: usable if it is pinned, which its library may not have said (torch's exchange API
/// does not).
void Call::join_host_operand(Operand& operand, const Operand& on_device) {
  if (operand.tensor.data && cuda::pointer_device(operand.tensor.data)) {
    operand.tensor.device = {kDLCUDAHost, 0};
    operand.hold = true;  // its allocator does not order itself on the stream
    return;
  }
  const bool is_scalar = operand.tensor.shape && operand.tensor.ndim == 0;
  if (takes_scalars_ && is_scalar && !operand.is_output) return;
  throw TypeError(std::string(function_) + ": " + on_device.name + " is on " + device_text(on_device.tensor.device) +
                  " and " + operand.name +
                  " is in host memory; accepted: all on one device, or all on the host (copy " + "one of them first)");
}

void Call::choose_stream(nb::handle stream) {
  const Operand& first = lead();
  stream_given_ = !is_none(stream);
  if (stream_given_) {
    stream_ = exchange::stream_argument(stream, function_);
    stream_choice_ = StreamChoice::given;
  } else if (staged_ || (first.route->own_stream() && !first.has_stream)) {
    stream_ = cuda::own_stream();
    stream_choice_ = StreamChoice::own;
  } else if (first.has_stream) {
    stream_ = first.stream;
    stream_choice_ = StreamChoice::named;
  } else if (first.route->current_stream(device_, &stream_)) {
    stream_choice_ = StreamChoice::library;
  } else {
    stream_ = cuda::kLegacyStream;
    stream_choice_ = StreamChoice::legacy;
  }
}

// The call's stream waits for `other`, which waits for the work in turn.
void Call::join(cudaStream_t other) {
  if (other == stream_ || std::find(joined_.begin(), joined_.end(), other) != joined_.end()) return;
  cuda::wait_stream(stream_, other);
  joined_.push_back(other);
}

cudaStream_t Call::other_stream(int i) const {
  const Operand& operand = operands_[i];
  if (staged_ || on_host()) return nullptr;
  if (operand.has_stream) return operand.stream;
  if (!stream_given_ && operand.route == lead().route) return nullptr;
  cudaStream_t theirs = nullptr;
  return operand.route->current_stream(device_, &theirs) ? theirs : nullptr;
}

bool Call::holds(int i) const {
  const Operand& operand = operands_[i];
  return operand.hold || (operand.resolved.is_valid() && stream_given_);
}

void Call::acquire() {
  for (int i = 0; i < operand_count_; ++i) {
    Operand& operand = operands_[i];
    const cudaStream_t theirs = other_stream(i);
    // With `stream=`, the caller wants the result there alone: the library's own stream does not wait for it, and what
    // the work reads is held instead.
    if (theirs && stream_given_) operand.hold = operand.hold || theirs != stream_;
    if (only_looks_) {
      const bool complete = operand.tensor.shape != nullptr;
      if (!complete) operand.route->acquire(operand, on_host() || staged_ ? nullptr : stream_);
      continue;
    }
    if (theirs && stream_given_) {
      cuda::wait_stream(stream_, theirs);
    } else if (theirs) {
      join(theirs);
    }
    operand.route->acquire(operand, on_host() || staged_ ? nullptr : stream_);
  }
}

nb::object Call::numpy(int i) const { return exchange::numpy_view(operands_[i]); }

nb::object Call::numpy_output() const {
  if (has_out_) return exchange::numpy_view(operands_[argument_count_]);
  Operand view;  // the new array, seen as any other
  view.object = result_;
  view.tensor = result_tensor_;
  return exchange::numpy_view(view);
}

bool Call::led_by_numpy() const { return std::strcmp(lead().route->library(), "numpy") == 0; }

const DLTensor& Call::output(const Shape& shape, DLDataType dtype) {
  output_shape_ = shape;
  if (is_beyond_counting({nullptr, {}, shape.ndim, dtype, output_shape_.sizes, nullptr, 0})) {
    throw ValueError(std::string(operands_[0].function) + ": the result has shape " + shape_text(shape) +
                     ", more elements than any memory");
  }
  compact_strides(output_shape_.sizes, shape.ndim, output_strides_);
  for (int i = 0; i < argument_count_; ++i) {
    if (operands_[i].is_output) check_written(operands_[i]);
  }
  if (has_out_) check_out(shape, dtype);
  if (!staged_ && !may_overlap_) check_overlap();
  if (has_out_) {
    result_tensor_ = operands_[argument_count_].tensor;
  } else {
    const DLDevice device = on_host() || staged_ ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device_};
    result_tensor_ = {kSomewhere, device, shape.ndim, dtype, output_shape_.sizes, output_strides_, 0};
    if (!only_looks_) {
      exchange::Made made = lead().route->empty(shape, dtype, device, stream_, stream_given_ && !staged_);
      result_ = std::move(made.object);
      result_tensor_.data = made.data;
    }
  }
  output_ = result_tensor_;
  if (staged_ && !only_looks_) {
    // The kernel writes compact device memory, which is copied to the host array afterwards.
    output_ = {nullptr, {kDLCUDA, device_}, shape.ndim, dtype, output_shape_.sizes, output_strides_, 0};
    output_.data = device_copy(static_cast<size_t>(element_count(output_) * item_bytes(dtype)));
  }
  return output_;
}

void Call::check_out(const Shape& shape, DLDataType dtype) {
  const Operand& out = operands_[argument_count_];
  const DLTensor& tensor = out.tensor;
  if (tensor.ndim != shape.ndim || !std::equal(shape.sizes, shape.sizes + shape.ndim, tensor.shape)) {
    throw ValueError(out.label() + " has shape " + shape_text(tensor) + "; accepted: the result's shape, " +
                     shape_text(shape));
  }
  if (tensor.dtype != dtype) {
    throw TypeError(out.label() + " is " + dtype_name(tensor.dtype) + "; accepted: the result's dtype, " +
                    dtype_name(dtype));
  }
  check_written(out);
}

void Call::check_written(const Operand& written) const {
  if (written.read_only) {
    throw TypeError(written.label() + " (" + describe(written) + ") is read-only; accepted: a writable array");
  }
  if (may_overlap_itself(written.tensor)) {
    throw ValueError(written.label() + " (" + describe(written) + ") has elements that share memory; accepted: one " +
                     "address for each element");
  }
}

void Call::check_overlap() const {
  for (int i = 0; i < operand_count_; ++i) {
    if (operands_[i].is_output) check_overlap(operands_[i]);
  }
}

void Call::check_overlap(const Operand& written) const {
  const bool is_out = has_out_ && &written == &operands_[argument_count_];
  for (int i = 0; i < argument_count_; ++i) {
    const Operand& other = operands_[i];
    if (&other == &written || (is_out && other.may_be_out && is_same(other.tensor, written.tensor))) continue;
    if (exchange::share_memory(written.tensor, other.tensor)) {
      throw ValueError(written.label() + " shares memory with " + other.name +
                       ", which the result would overwrite while it is read; accepted: an array of its own");
    }
  }
}

void* Call::workspace(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (staged_) return device_copy(bytes);
  Shape shape;
  shape.ndim = 1;
  shape.sizes[0] = static_cast<int64_t>(bytes);
  exchange::Made made = lead().route->empty(shape, {kDLUInt, 8, 1}, {kDLCUDA, device_}, stream_, stream_given_);
  workspace_ = std::move(made.object);
  return made.data;
}

// ---- execution="cuda": host arrays, computed on the GPU ----

void* Call::device_copy(size_t bytes) {
  if (bytes == 0) return nullptr;
  const auto release = [device = device_, stream = stream_](void* pointer) { cuda::release(pointer, device, stream); };
  device_copies_.emplace_back(cuda::allocate(bytes, stream_), release);
  return device_copies_.back().get();
}

void Call::stage() {
  for (int i = 0; i < argument_count_; ++i) {
    Operand& operand = operands_[i];
    const size_t bytes = static_cast<size_t>(element_count(operand.tensor) * item_bytes(operand.tensor.dtype));
    if (operand.is_output) {  // compact on the device, like the result
      staged_writes_.emplace_back(i, numpy(i));
      compact_strides(operand.shape, operand.tensor.ndim, operand.strides);
      operand.tensor.shape = operand.shape;
      operand.tensor.strides = operand.strides;
      operand.tensor.data = device_copy(bytes);
      operand.tensor.device = {kDLCUDA, device_};
      continue;
    }
    if (!is_dense(operand.tensor)) {
      operand.resolved = kAscontiguousarray.get()(numpy(i));
      exchange::read_buffer(operand, operand.resolved);
    }
    // A dense array is copied as it lies, so that a transposed one stays transposed.
    const uintptr_t first = byte_range(operand.tensor).begin;
    const uintptr_t offset = reinterpret_cast<uintptr_t>(operand.tensor.data) - first;
    char* copy = static_cast<char*>(device_copy(bytes));
    if (bytes > 0) {
      const nb::gil_scoped_release no_gil;
      cuda::copy_to_device(copy, reinterpret_cast<const void*>(first), bytes, stream_);
    }
    operand.tensor.data = bytes > 0 ? copy + offset : nullptr;
    operand.tensor.device = {kDLCUDA, device_};
  }
}

void Call::unstage() {
  for (const auto& [i, view] : staged_writes_) {
    const DLTensor& written = operands_[i].tensor;
    Shape shape;
    shape.ndim = written.ndim;
    std::copy(written.shape, written.shape + written.ndim, shape.sizes);
    nb::object compact = nb::cast(exchange::new_array(shape, written.dtype, {kDLCPU, 0}, nullptr));
    {
      const nb::gil_scoped_release no_gil;
      cuda::copy_to_host(nb::cast<exchange::Array&>(compact).data, written.data,
                         static_cast<size_t>(element_count(written) * item_bytes(written.dtype)), stream_);
      cuda::synchronize(stream_);
    }
    kCopyto.get()(view, compact);
  }
  const size_t bytes = static_cast<size_t>(element_count(output_) * item_bytes(output_.dtype));
  if (bytes == 0) return;
  nb::object compact;  // host memory to copy from, where the result's own is strided
  void* target = result_tensor_.data;
  if (!is_compact(result_tensor_)) {
    compact = nb::cast(exchange::new_array(output_shape_, output_.dtype, {kDLCPU, 0}, nullptr));
    target = nb::cast<exchange::Array&>(compact).data;
  }
  {
    const nb::gil_scoped_release no_gil;
    cuda::copy_to_host(target, output_.data, bytes, stream_);
    cuda::synchronize(stream_);
  }
  if (compact.is_valid()) kCopyto.get()(numpy_output(), compact);
}

nb::object Call::hand_over() {
  if (staged_) unstage();
  if (!on_host() && !staged_) {
    for (cudaStream_t theirs : joined_) cuda::wait_stream(theirs, stream_);
    std::vector<exchange::Held> held;
    for (int i = 0; i < operand_count_; ++i) {
      Operand& operand = operands_[i];
      operand.route->used(operand, stream_);
      if (!holds(i)) continue;
      held.push_back({nb::borrow(operand.object), std::move(operand.release)});
      if (operand.resolved.is_valid()) held.push_back({operand.resolved});
      if (operand.exported.is_valid()) held.push_back({operand.exported});
    }
    if (!held.empty()) exchange::hold_for(stream_, device_, std::move(held));
  }
  if (has_out_) return nb::borrow(operands_[argument_count_].object);
  return lead().route->hand_over(std::move(result_), on_host() || staged_ ? nullptr : stream_);
}

}  // namespace interop
