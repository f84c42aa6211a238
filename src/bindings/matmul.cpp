/// `interop.matmul`: from Python's arguments to a product on the host, on the GPU, or in JAX.
#include <interop/call.h>
#include <interop/cuda/matmul.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings/bindings.h"
#include "exchange/closing.h"
#include "exchange/route.h"
#include "exchange/stream.h"
#include "exchange/typestr.h"
#include "ops/matmul.h"

namespace interop::bindings {
namespace {

using exchange::Lookup;
using exchange::Name;

constexpr const char* kFunction = "interop.matmul";
const Lookup kJaxMatmul("interop.jax", "matmul");
const Lookup kNumpyMatmul("numpy", "matmul");
const Lookup kErrstate("numpy", "errstate");
const Lookup kFindPaths("interop._cublas", "find_paths");

[[noreturn]] void bad_choice(const char* name, nb::handle value, const char* accepted) {
  throw ValueError(std::string(kFunction) + ": " + name + " is " + nb::cast<std::string>(nb::repr(value)) +
                   "; accepted: " + accepted);
}

bool equals(nb::handle value, const char* text) {
  return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0;
}

cuda::MatmulOptions read_options(nb::handle backend, nb::handle precision) {
  cuda::MatmulOptions options;
  if (!backend.is_none()) {
    if (equals(backend, "tiled")) {
      options.backend = cuda::MatmulBackend::tiled;
    } else if (equals(backend, "cublas")) {
      options.backend = cuda::MatmulBackend::cublas;
    } else {
      bad_choice("backend", backend, "None, 'tiled', 'cublas'");
    }
  }
  if (!precision.is_none()) {
    if (!equals(precision, "tf32")) bad_choice("precision", precision, "None (exact), 'tf32'");
    if (options.backend == cuda::MatmulBackend::tiled) {
      throw ValueError(std::string(kFunction) +
                       ": precision is 'tf32', which backend='tiled' does not serve; accepted: " +
                       "precision=None, or backend None or 'cublas'");
    }
    options.allow_tf32 = true;
  }
  return options;
}

/// JAX arrays and tracers alone, with no `execution`: one JAX primitive, on XLA's stream.
bool is_jax_call(nb::handle a, nb::handle b) {
  const exchange::Route& first = exchange::route_of(a, kFunction, "a");
  const exchange::Route& second = exchange::route_of(b, kFunction, "b");
  return std::strcmp(first.library(), "jax") == 0 && std::strcmp(second.library(), "jax") == 0;
}

bool is_tracer(nb::handle x) { return exchange::find_route(x) == &exchange::jax_tracer_route(); }

nb::object matmul_in_jax(nb::handle a, nb::handle b, nb::handle out, nb::handle stream, nb::handle backend,
                         nb::handle precision, nb::handle execution) {
  nb::dict keywords;
  const auto pass = [&](const char* name, nb::handle value) {
    if (!value.is_none()) keywords[name] = value;
  };
  pass("out", out);
  pass("backend", backend);
  pass("precision", precision);
  pass("execution", execution);
  if (!stream.is_none()) {
    keywords["stream"] = reinterpret_cast<uintptr_t>(exchange::stream_argument(stream, kFunction));
  }
  return kJaxMatmul.get()(a, b, **keywords);
}

void matmul_on_host(const Call& call) {
  nb::dict keywords;
  keywords["out"] = call.numpy_output();
  if (led_by_numpy(call)) {
    kNumpyMatmul.get()(call.numpy(0), call.numpy(1), **keywords);
    return;
  }
  nb::dict quiet;
  quiet["all"] = "ignore";
  const exchange::Within guard(kErrstate.get()(**quiet));
  kNumpyMatmul.get()(call.numpy(0), call.numpy(1), **keywords);
}

/// Tells the CUDA layer, once, where cuda-pathfinder finds cuBLASLt. Not at import: it takes a while.
void find_cublas() {
  static bool found = false;
  if (found) return;
  found = true;
  const auto paths = nb::cast<std::vector<std::string>>(kFindPaths.get()());
  std::vector<const char*> pointers;
  for (const std::string& path : paths) pointers.push_back(path.c_str());
  cuda::set_cublas_paths(pointers.data(), static_cast<int>(pointers.size()));
}

void refuse_backend(nb::handle backend) {
  if (backend.is_none()) return;
  throw ValueError(std::string(kFunction) + ": backend is given, but the arrays are in host memory, where NumPy " +
                   "computes; accepted: None, or execution='cuda' with it");
}

nb::object matmul(nb::handle a, nb::handle b, nb::handle out, nb::handle stream, nb::handle backend,
                  nb::handle precision, nb::handle execution) {
  const exchange::CallGuard guard;
  const cuda::MatmulOptions options = read_options(backend, precision);
  if (is_jax_call(a, b) && (execution.is_none() || is_tracer(a) || is_tracer(b))) {
    return matmul_in_jax(a, b, out, stream, backend, precision, execution);
  }

  Call call(kFunction, {{"a", a}, {"b", b}}, {out, stream, execution});
  const ops::MatmulResult result = ops::matmul_result(call.tensor(0), call.tensor(1));
  if (call.on_host()) {
    refuse_backend(backend);
    call.output(result.shape, result.dtype);
    matmul_on_host(call);
    return call.hand_over();
  }
  find_cublas();
  const DLTensor& c = call.output(result.shape, result.dtype);
  const Gemm gemm = ops::plan_matmul(call.tensor(0), call.tensor(1), c);
  const cuda::MatmulPlan plan = cuda::plan_matmul(gemm, options);
  void* workspace = call.workspace(plan.workspace_bytes);
  call.launch([&](cudaStream_t s) { cuda::launch_matmul(gemm, plan, workspace, s); });
  return call.hand_over();
}

/// What a call of `matmul` would do; None for arrays of JAX alone, which JAX computes. As `matmul`, without the launch.
nb::object explain_matmul(nb::handle a, nb::handle b, nb::handle out, nb::handle stream, nb::handle backend,
                          nb::handle precision, nb::handle execution) {
  const exchange::CallGuard guard;
  const cuda::MatmulOptions options = read_options(backend, precision);
  if (is_jax_call(a, b) && (execution.is_none() || is_tracer(a) || is_tracer(b))) return nb::none();

  Call call(kFunction, {{"a", a}, {"b", b}}, {out, stream, execution, true});
  const ops::MatmulResult result = ops::matmul_result(call.tensor(0), call.tensor(1));
  if (call.on_host()) refuse_backend(backend);
  const DLTensor& c = call.output(result.shape, result.dtype);
  auto explained = nb::borrow<nb::dict>(call.explain());
  if (call.on_host()) {
    explained["algorithm"] = "numpy.matmul, on views of the arrays";
    explained["workspace_bytes"] = 0;
    return explained;
  }
  find_cublas();
  Gemm gemm = ops::plan_matmul(call.tensor(0), call.tensor(1), c);
  if (call.staged()) gemm.a = gemm.b = c.data;  // the copies would be as well aligned as the output
  const cuda::MatmulPlan plan = cuda::plan_matmul(gemm, options);
  explained["algorithm"] = cuda::describe(gemm, plan);
  explained["workspace_bytes"] = plan.workspace_bytes;
  return explained;
}

/// A compact array of this shape and dtype, without memory: all that is known of JAX's tracers.
class Compact {
 public:
  Compact(const char* name, nb::handle shape, const std::string& dtype)
      : Compact(read_shape(name, shape), read_dtype(name, dtype)) {}
  explicit Compact(const ops::MatmulResult& result) : Compact(result.shape, result.dtype) {}
  Compact(const Compact&) = delete;
  Compact& operator=(const Compact&) = delete;
  const DLTensor& operator*() const { return tensor_; }

 private:
  Compact(const Shape& shape, DLDataType dtype) : shape_(shape) {
    compact_strides(shape_.sizes, shape_.ndim, strides_);
    tensor_ = {nullptr, {kDLCPU, 0}, shape_.ndim, dtype, shape_.sizes, strides_, 0};
  }
  static Shape read_shape(const char* name, nb::handle sizes) {
    const nb::tuple tuple = nb::borrow<nb::tuple>(sizes);
    Shape shape;
    shape.ndim = static_cast<int>(nb::len(tuple));
    if (shape.ndim > kMaxDims) {
      throw ValueError(std::string(kFunction) + ": " + name + " has " + std::to_string(shape.ndim) +
                       " dimensions; accepted: up to " + std::to_string(kMaxDims));
    }
    for (int i = 0; i < shape.ndim; ++i) shape.sizes[i] = exchange::to_int64(tuple[i]);
    return shape;
  }
  static DLDataType read_dtype(const char* name, const std::string& dtype) {
    const auto known = exchange::dtype_from_name(dtype);
    if (!known) throw TypeError(std::string(kFunction) + ": " + name + " is " + dtype + "; accepted: float32, float64");
    return *known;
  }

  Shape shape_;
  int64_t strides_[kMaxDims];
  DLTensor tensor_{};
};

nb::object matmul_result(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape,
                         const std::string& b_dtype) {
  const Compact a("a", a_shape, a_dtype);
  const Compact b("b", b_shape, b_dtype);
  return exchange::shape_tuple(ops::matmul_result(*a, *b).shape);
}

Gemm plan_compact(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape, const std::string& b_dtype) {
  const Compact a("a", a_shape, a_dtype);
  const Compact b("b", b_shape, b_dtype);
  const Compact c(ops::matmul_result(*a, *b));
  return ops::plan_matmul(*a, *b, *c);
}

int matmul_batch_ndim(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape, const std::string& b_dtype) {
  return plan_compact(a_shape, a_dtype, b_shape, b_dtype).batch_ndim;
}

std::size_t matmul_workspace(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape,
                             const std::string& b_dtype, nb::handle backend, nb::handle precision) {
  return cuda::largest_workspace(plan_compact(a_shape, a_dtype, b_shape, b_dtype), read_options(backend, precision));
}

}  // namespace

void bind_matmul(nb::module_& m) {
  m.def("matmul", &matmul, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg().none(),
        nb::sig("def matmul(a: typing.Any, b: typing.Any, out: typing.Any, stream: typing.Any, "
                "backend: str | None, precision: str | None, execution: str | None, /) -> typing.Any"),
        "interop.matmul with every argument positional.");
  m.def("find_cublas", &find_cublas, "Look for cuBLASLt, once; device calls of matmul do so themselves.");
  m.def(
      "cublas_status",
      [] {
        find_cublas();
        return cuda::cublas_status();
      },
      "Where cuBLASLt was found, or why not.");
  m.def(
      "explain_matmul", &explain_matmul, nb::arg("a").none(), nb::arg("b").none(), nb::arg("out") = nb::none(),
      nb::arg("stream") = nb::none(), nb::arg("backend") = nb::none(), nb::arg("precision") = nb::none(),
      nb::arg("execution") = nb::none(),
      nb::sig("def explain_matmul(a: typing.Any, b: typing.Any, out: typing.Any = None, stream: typing.Any = None, "
              "backend: str | None = None, precision: str | None = None, execution: str | None = None) -> "
              "dict[str, typing.Any] | None"),
      "What interop.matmul would do with these arguments; None where JAX would do it. Launches and allocates nothing.");
  m.def("matmul_result", &matmul_result,
        nb::sig("def matmul_result(a_shape: tuple[int, ...], a_dtype: str, b_shape: tuple[int, ...], b_dtype: str) -> "
                "tuple[int, ...]"),
        "The shape of a product, or the error that interop.matmul raises for such operands.");
  m.def("matmul_batch_ndim", &matmul_batch_ndim,
        nb::sig("def matmul_batch_ndim(a_shape: tuple[int, ...], a_dtype: str, b_shape: tuple[int, ...], b_dtype: str) "
                "-> int"),
        "Over how many strides the batch of a product of compact arrays runs, once collapsed.");
  m.def("matmul_workspace", &matmul_workspace, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(),
        nb::sig("def matmul_workspace(a_shape: tuple[int, ...], a_dtype: str, b_shape: tuple[int, ...], b_dtype: str, "
                "backend: str | None, precision: str | None, /) -> int"),
        "The most bytes of workspace that a product of compact arrays can need on a GPU.");
}

}  // namespace interop::bindings
