/// One call: arguments in, device and stream decided, result out.
#include "exchange/call.h"

#include <algorithm>

#include "exchange/array/array.h"
#include "exchange/array/shown.h"
#include "exchange/array/view.h"
#include "exchange/checks.h"
#include "exchange/closing.h"
#include "exchange/overlap.h"
#include "exchange/reaper.h"
#include "exchange/route.h"
#include "exchange/routes/buffer.h"
#include "exchange/routes/registered.h"
#include "exchange/stream.h"

namespace interop::exchange {
namespace {

/// Where an array would be allocated: as well aligned as any.
void* const kSomewhere = reinterpret_cast<void*>(uintptr_t{1} << 20);

bool is_none(nb::handle object) { return !object.is_valid() || object.is_none(); }

/// "float32 array of shape (2, 3) on cuda:0"
std::string describe(const Operand& operand) {
  return dtype_name(operand.tensor.dtype) + " of shape " + shape_text(operand.tensor);
}

void check_writable(Operand& operand) {
  if (operand.read_only) {
    throw TypeError(operand.label() + " (" + describe(operand) + ") is read-only; accepted: a writable array");
  }
  if (may_overlap_itself(operand.tensor)) {
    throw ValueError(operand.label() + " (" + describe(operand) + ") has elements that share memory; accepted: one " +
                     "address for each element");
  }
  if (!any_shown()) return;
  operand.shown = find_shown(operand.tensor);
  for (const Shown& shown : operand.shown) {
    enter_foreign(operand.function, shown.route->library());
    shown.route->check_write(operand, shown.array);
  }
}

/// The N of execution="cuda:N"; 0 for "cuda".
int execution_device(nb::handle execution, const char* function) {
  if (nb::isinstance<nb::str>(execution)) {
    const std::string text = text_of(execution);
    if (text == "cuda") return 0;
    if (text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() < 9 &&
        std::all_of(text.begin() + 5, text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      return std::stoi(text.substr(5));
    }
  }
  throw ValueError(std::string(function) + ": execution is " + shown(execution) +
                   "; accepted: None, 'cuda', 'cuda:0', 'cuda:1', ...");
}

/// Is it the same array, element for element?

}  // namespace

Call::Call(const char* function, const InteropArgument* arguments, int count, const InteropOptions& options)
    : function_(function),
      operands_(count + 1),
      only_looks_(options.flags & INTEROP_ONLY_LOOKS),
      may_overlap_(options.flags & INTEROP_MAY_OVERLAP),
      takes_scalars_(options.flags & INTEROP_TAKES_SCALARS),
      below_autograd_(options.flags & INTEROP_BELOW_AUTOGRAD) {
  inspect(arguments, count, options.out);
  choose_device(options.execution);
  if (on_host()) {
    if (!is_none(options.stream)) {
      throw ValueError(std::string(function_) + ": stream is given, but the arrays are in host memory; accepted: None" +
                       (options.execution ? ", or execution='cuda' with it" : ""));
    }
  } else {
    enter_foreign(function_, "CUDA");
    enter_device();
    choose_stream(options.stream);
  }
  acquire();
  if (staged_) {
    if (has_out_ && !may_overlap_) check_overlap(operands_[argument_count_]);  // of the host arrays themselves
    if (may_overlap_) check_copies();
    if (cuda::is_capturing(stream_)) {  // the host would wait for the copies, which are not run
      throw ValueError(
          std::string(function_) +
          ": execution is given, and the call's stream is being captured into a CUDA graph; accepted: a call outside " +
          "the capture, or device arrays");
    }
    staging_ = std::make_unique<Staging>(device_, stream_);
    if (!only_looks_) stage();
  }
}

Call::~Call() = default;

/// All of one moment: what is registered later, by an `export` or by another thread, is for the next call.
void Call::find_routes(const InteropArgument* arguments, nb::handle out) {
  const unsigned registrations = registration_count();
  const auto add = [&](const InteropArgument& argument) {
    Operand& operand = operands_.add();
    ++operand_count_;
    operand.function = function_;
    operand.name = argument.name;
    operand.object = argument.object;
    operand.is_output = argument.flags & INTEROP_WRITTEN;
    operand.is_read = !operand.is_output || (argument.flags & INTEROP_READ_TOO);
    operand.may_be_out = argument.flags & INTEROP_MAY_BE_OUT;
    operand.takes_conjugated = argument.flags & INTEROP_TAKES_CONJUGATED;
    operand.route = find_route(operand.object);
    // Not of what a registered library exports, which nobody but the call sees.
    operand.below_autograd = below_autograd_ && operand.route && operand.route->is_torch();
  };
  for (int i = 0; i < argument_count_; ++i) add(arguments[i]);
  if (has_out_) add({"out", out.ptr(), INTEROP_WRITTEN});
  if (registration_count() == registrations) return;
  for (int i = 0; i < operand_count_; ++i) {  // a first look called Python; these looks do not
    const Route* taught = registered_route(Py_TYPE(operands_[i].object.ptr()));
    if (taught) operands_[i].route = taught;
  }
}

void Call::inspect(const InteropArgument* arguments, int count, nb::handle out) {
  if (count < 1) {
    throw ValueError(std::string(function_) + ": there is no array argument; accepted: at least one, whose library " +
                     "and device are the call's");
  }
  argument_count_ = count;
  has_out_ = !is_none(out);
  find_routes(arguments, out);
  // Before any of them is read: a call with an array of Dask's is refused here, and made lazily.
  for (int i = 0; i < operand_count_; ++i) {
    if (!operands_[i].route) refuse_no_array(operands_[i].object, function_, operands_[i].name);
  }
  for (int i = 0; i < operand_count_; ++i) {
    Operand& operand = operands_[i];
    if (operand.is_output && !operand.route->writable()) {
      throw TypeError(operand.label() + " is " + type_text(operand.object) + ", which is immutable; accepted: " +
                      (operand.object.is(out) ? "None, or a writable array" : "a writable array"));
    }
    if (i > 0 && operands_[i - 1].route == operand.route) {  // has been entered
      operand.may_have_tangent = operands_[i - 1].may_have_tangent;
    } else {
      operand.route->enter(operand);
    }
    operand.route->inspect(operand);
  }
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
  } else if (device_ != wanted && text_of(execution) != "cuda") {
    throw ValueError(std::string(function_) + ": execution is '" + text_of(execution) + "' and " + on_device->name +
                     " is on " + device_text(on_device->tensor.device) + "; accepted: the arrays' own device");
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

void Call::enter_device() {
  try {
    guard_.emplace(device_);
  } catch (const CudaError&) {
    if (const Operand* on_device = find_device_operand()) refuse_device(*on_device);
    throw;
  }
}

void Call::choose_stream(nb::handle stream) {
  const Operand& first = lead();
  stream_given_ = !is_none(stream);
  if (stream_given_) {
    stream_ = stream_argument(stream, function_);
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
  cudaStream_t waited_for = nullptr;
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
      if (theirs != waited_for) cuda::wait_stream(stream_, theirs);
      waited_for = theirs;
    } else if (theirs) {
      join(theirs);
    }
    operand.route->acquire(operand, on_host() || staged_ ? nullptr : stream_);
  }
  if (!on_host() && !staged_) {
    for (int i = 0; i < operand_count_; ++i) check_address(operands_[i]);
  }
  for (int i = 0; i < argument_count_; ++i) {
    if (!operands_[i].is_output) continue;
    check_writable(operands_[i]);
    if (!may_overlap_) check_overlap(operands_[i]);
  }
}

nb::object Call::numpy(int i) { return numpy_view(operands_[i]); }

nb::object Call::numpy_output(int i) {
  if (i >= result_count_) throw ValueError(std::string(function_) + ": the call has no result " + std::to_string(i));
  if (is_out(i)) return numpy_view(operands_[argument_count_]);
  Operand view;  // the new array, seen as any other
  view.function = function_;
  view.name = "the result";
  view.object = result(i).object;
  view.tensor = result(i).tensor;
  return numpy_view(view);
}

const DLTensor& Call::output(const Shape& shape, DLDataType dtype) {
  if (result_count_ > 0) others_.push_back(std::make_unique<Result>());
  const int place = result_count_++;
  Result& made = place == 0 ? first_ : *others_.back();
  made.shape = shape;
  if (is_beyond_counting({nullptr, {}, shape.ndim, dtype, made.shape.sizes, nullptr, 0})) {
    throw ValueError(std::string(operands_[0].function) + ": the result has shape " + shape_text(shape) +
                     ", more elements than any memory");
  }
  compact_strides(made.shape.sizes, shape.ndim, made.strides);
  if (is_out(place)) {
    check_out(shape, dtype);
    made.tensor = operands_[argument_count_].tensor;
  } else {
    const DLDevice device = on_host() || staged_ ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device_};
    made.tensor = {kSomewhere, device, shape.ndim, dtype, made.shape.sizes, made.strides, 0};
    if (!only_looks_) {
      Made array = lead().route->empty(shape, dtype, device, stream_, stream_given_ && !staged_);
      made.object = std::move(array.object);
      made.tensor.data = array.data;
    }
  }
  made.output = made.tensor;
  if (staged_ && !only_looks_) {
    // The kernel writes compact device memory, which is copied to the host array afterwards.
    made.output = {nullptr, {kDLCUDA, device_}, shape.ndim, dtype, made.shape.sizes, made.strides, 0};
    made.output.data = staging_->place(static_cast<size_t>(element_count(made.output) * item_bytes(dtype)));
  }
  return made.output;
}

void Call::check_out(const Shape& shape, DLDataType dtype) {
  Operand& out = operands_[argument_count_];
  const DLTensor& tensor = out.tensor;
  if (tensor.ndim != shape.ndim || !std::equal(shape.sizes, shape.sizes + shape.ndim, tensor.shape)) {
    throw ValueError(out.label() + " has shape " + shape_text(tensor) + "; accepted: the result's shape, " +
                     shape_text(shape));
  }
  if (tensor.dtype != dtype) {
    throw TypeError(out.label() + " is " + dtype_name(tensor.dtype) + "; accepted: the result's dtype, " +
                    dtype_name(dtype));
  }
  check_writable(out);
  if (!staged_ && !may_overlap_) check_overlap(out);
}

void Call::check_overlap(const Operand& written) const {
  const bool is_out = has_out_ && &written == &operands_[argument_count_];
  for (int i = 0; i < argument_count_; ++i) {
    const Operand& other = operands_[i];
    if (&other == &written || (is_out && other.may_be_out && is_same(other.tensor, written.tensor))) continue;
    if (share_memory(written.tensor, other.tensor)) {
      throw ValueError(written.label() + " shares memory with " + other.name +
                       ", which the result would overwrite while it is read; accepted: an array of its own");
    }
  }
}

void Call::check_copies() const {
  for (int i = 0; i < argument_count_; ++i) {
    for (int j = 0; j < argument_count_; ++j) {
      const Operand& written = operands_[i];
      const Operand& other = operands_[j];
      if (i == j || !written.is_output || is_same(written.tensor, other.tensor)) continue;
      if (!share_memory(written.tensor, other.tensor)) continue;
      throw ValueError(written.label() + " shares memory with " + other.name +
                       ", and execution= would copy each by itself; accepted: one array for both, or arrays that share "
                       "no memory");
    }
  }
}

void* Call::workspace(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (staged_) return staging_->place(bytes);
  Shape shape;
  shape.ndim = 1;
  shape.sizes[0] = static_cast<int64_t>(bytes);
  const DLDevice device = on_host() ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device_};
  Made made = lead().route->empty(shape, {kDLUInt, 8, 1}, device, stream_, stream_given_);
  workspaces_.push_back(std::move(made.object));
  return made.data;
}

nb::object Call::hand_over() {
  if (staged_) unstage();
  if (!on_host() && !staged_) {
    for (cudaStream_t theirs : joined_) cuda::wait_stream(theirs, stream_);
    std::vector<Held> held;
    for (int i = 0; i < operand_count_; ++i) {
      Operand& operand = operands_[i];
      operand.route->used(operand, stream_);
      if (!holds(i)) continue;
      const nb::object owner = operand.source_route()->owner(operand.source());
      for (Held& each : owners_of(operand, owner)) held.push_back(std::move(each));
    }
    if (!held.empty()) hold_for(stream_, device_, std::move(held));
  }
  for (int i = 0; i < operand_count_; ++i) {
    Operand& operand = operands_[i];
    if (!operand.is_output) continue;
    for (Shown& shown : operand.shown) shown.count = shown.route->write_count(shown.array);
    operand.route->written(operand);
    for (const Shown& shown : operand.shown) {  // once, where several share a counter
      if (shown.route->write_count(shown.array) == shown.count) shown.route->count_write(shown.array);
    }
  }
  const auto get = [&](int i) {
    if (is_out(i)) return nb::borrow(operands_[argument_count_].object);
    Result& made = i == 0 ? first_ : *others_[i - 1];
    return lead().route->hand_over(std::move(made.object), on_host() || staged_ ? nullptr : stream_);
  };
  if (result_count_ == 0) return nb::none();
  if (result_count_ == 1) return get(0);
  nb::list all;
  for (int i = 0; i < result_count_; ++i) all.append(get(i));
  return nb::tuple(all);
}

}  // namespace interop::exchange
