/// What a call would do, in words and figures, for `interop.explain`.
#include "exchange/explain.h"

#include <cstdio>
#include <cstring>

#include "exchange/array/array.h"

namespace interop::exchange {
namespace {

std::string handle_text(cudaStream_t stream) {
  if (stream == cuda::kLegacyStream) return "the legacy default stream";
  if (stream == cuda::kPerThreadStream) return "the per-thread default stream";
  char text[32];
  std::snprintf(text, sizeof text, "stream %#zx", static_cast<size_t>(reinterpret_cast<uintptr_t>(stream)));
  return text;
}

bool is_of(const Operand& operand, const char* library) { return std::strcmp(operand.route->library(), library) == 0; }

nb::dict explain_argument(const Operand& operand) {
  const DLTensor& tensor = operand.tensor;
  nb::dict entry;
  entry["name"] = operand.name;
  entry["library"] = operand.route->library();
  entry["protocol"] = protocol_of(operand);
  entry["pointer"] = reinterpret_cast<uintptr_t>(tensor.data);
  entry["shape"] = shape_tuple(tensor.shape, tensor.ndim);
  entry["strides"] = shape_tuple(tensor.strides, tensor.ndim);
  entry["dtype"] = dtype_name(tensor.dtype);
  entry["device"] = device_text(tensor.device);
  entry["read_only"] = operand.read_only;
  return entry;
}

std::string stream_reason(const Call& call) {
  const Operand& first = call.operand(0);
  const std::string name = first.name;
  switch (call.stream_choice()) {
    case StreamChoice::none:
      return "host arrays have no stream";
    case StreamChoice::given:
      return "given by stream=";
    case StreamChoice::own:
      if (call.staged()) return "interop's own of this thread and device, as execution= asks for the GPU";
      return "interop's own of this thread and device, as the library of " + name + " (" + first.route->library() +
             ") names none";
    case StreamChoice::named:
      return "the one that " + name + " itself names";
    case StreamChoice::library:
      return std::string("the current one of ") + first.route->library() + ", the library of " + name;
    case StreamChoice::legacy:
      return "the legacy default stream, as nothing is known of the library of " + name;
  }
  return "";
}

/// What the call's stream would wait for because of argument `i`, and what would wait for it; "" if nothing.
std::string explain_wait(const Call& call, int i) {
  const Operand& operand = call.operand(i);
  if (call.on_host() || call.staged()) return "";
  const std::string name = operand.name;
  const cudaStream_t theirs = call.other_stream(i);
  if (theirs && theirs != call.stream()) {
    const std::string before = name + ": the call waits for " + handle_text(theirs);
    return call.stream_choice() == StreamChoice::given ? before : before + ", which waits for the call in turn";
  }
  if (theirs) return "";
  if (nb::isinstance<Array>(operand.object)) {
    const Array& array = nb::cast<const Array&>(operand.object);
    if (!array.work || !array.work->last_use) return "";
    return name + ": the call waits for its last use, on " + handle_text(array.work->stream);
  }
  // Exported for the call: the producer has been told the stream.
  const bool told = operand.hold && std::strstr(protocol_of(operand), "__dlpack__") != nullptr;
  return told ? name + ": its producer makes the call wait, by __dlpack__(stream=)" : "";
}

std::string bytes_text(const DLTensor& tensor) {
  return std::to_string(element_count(tensor) * item_bytes(tensor.dtype)) + " bytes";
}

nb::list explain_copies(const Call& call) {
  nb::list copies;
  const std::string device = device_text({kDLCUDA, call.device()});
  const std::vector<Call::Copied> staged = call.staged() ? call.copies() : std::vector<Call::Copied>();
  for (int i = 0; i < call.operand_count(); ++i) {
    const Operand& operand = call.operand(i);
    if (operand.copied) copies.append(std::string(operand.name) + ": " + operand.copied + ", resolved by its library");
    if (!call.staged() || i >= call.argument_count() || staged[i].of != i) continue;
    const std::string text = device + ", " + bytes_text(operand.tensor) + ", as execution= asks";
    if (staged[i].is_sent) copies.append(std::string(operand.name) + ": to " + text);
    if (staged[i].is_fetched) copies.append(std::string(operand.name) + ": from " + text);
  }
  for (int i = 0; call.staged() && i < call.result_count(); ++i) {
    copies.append("the result: from " + device + ", " + bytes_text(call.made(i)) + ", as execution= asks");
  }
  return copies;
}

std::string allocator(const Call& call) {
  const Operand& first = call.operand(0);
  if (call.has_out()) return "none: out is given";
  const bool on_host = call.on_host() || call.staged();
  if (!is_of(first, "interop") && !is_of(first, "jax")) {
    return first.route->allocator() + (on_host ? ", in host memory" : ", on the call's stream");
  }
  const std::string ours =
      on_host ? "interop's, 64-byte aligned host memory" : "the CUDA driver's stream-ordered pool, by interop";
  return is_of(first, "jax") ? ours + ", handed to JAX without a copy" : ours;
}

}  // namespace

nb::dict explain(const Call& call) {
  nb::list arguments, waits, held;
  for (int i = 0; i < call.operand_count(); ++i) {
    arguments.append(explain_argument(call.operand(i)));
    if (const std::string wait = explain_wait(call, i); !wait.empty()) waits.append(wait);
    if (!call.on_host() && !call.staged() && call.holds(i)) held.append(call.operand(i).name);
  }
  nb::dict explained;
  explained["arguments"] = arguments;
  explained["result_library"] = call.operand(call.has_out() ? call.operand_count() - 1 : 0).route->library();
  const bool has_result = call.result_count() > 0;
  explained["result_shape"] = has_result ? shape_tuple(call.made(0).shape, call.made(0).ndim) : nb::make_tuple();
  explained["result_dtype"] = has_result ? dtype_name(call.made(0).dtype) : std::string("none");
  explained["device"] = call.on_host() ? std::string("cpu") : device_text({kDLCUDA, call.device()});
  explained["stream"] = nb::none();
  if (!call.on_host()) explained["stream"] = reinterpret_cast<uintptr_t>(call.stream());
  explained["stream_reason"] = stream_reason(call);
  explained["waits"] = waits;
  explained["held"] = held;
  explained["copies"] = explain_copies(call);
  explained["allocator"] = allocator(call);
  return explained;
}

}  // namespace interop::exchange
