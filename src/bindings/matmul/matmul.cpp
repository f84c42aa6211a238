/// `interop.matmul`: from Python's arguments to a product on the host, on the GPU, or in JAX.
#include <interop/call.h>
#include <interop/cuda/driver.h>
#include <interop/cuda/elementwise.h>
#include <interop/cuda/matmul.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/functions/results.h"
#include "bindings/scalars.h"
#include "exchange/closing.h"
#include "exchange/route.h"
#include "exchange/routes/numpy.h"
#include "exchange/stream.h"
#include "exchange/typestr.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace interop::bindings {
namespace {

using exchange::Lookup;
using exchange::Name;

constexpr const char* kFunction = "interop.matmul";
const Lookup kJaxMatmul("interop.jax", "matmul");
const Lookup kJaxMatmulOfArrays("interop.jax._matmul", "matmul_of_arrays");
const Lookup kNumpyMatmul("numpy", "matmul");
const Lookup kErrstate("numpy", "errstate");
const Lookup kFindPaths("interop._cuda.cublas", "find_paths");
const Lookup kOnHost("interop._host.matmul", "compute");
const Lookup kPromote("interop._operations.promotion", "promote");
const Lookup kFactor("interop._operations.promotion", "factor_of");
const Lookup kDtypeName("interop._operations.promotion", "dtype_name");
const Lookup kNumpyGeneric("numpy", "generic");

[[noreturn]] void bad_choice(const char* name, nb::handle value, const char* accepted) {
  throw ValueError(std::string(kFunction) + ": " + name + " is " + exchange::shown(value) + "; accepted: " + accepted);
}

bool equals(nb::handle value, const char* text) {
  return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0;
}

cuda::MatmulOptions kernel_options(nb::handle backend, nb::handle precision) {
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
    if (equals(precision, "tf32")) {
      options.precision = cuda::MatmulPrecision::tf32;
    } else if (equals(precision, "tf32x3")) {
      options.precision = cuda::MatmulPrecision::tf32x3;
    } else {
      bad_choice("precision", precision, "None (exact), 'tf32', 'tf32x3'");
    }
    if (options.precision == cuda::MatmulPrecision::tf32x3 && options.backend == cuda::MatmulBackend::cublas) {
      throw ValueError(std::string(kFunction) +
                       ": precision is 'tf32x3', which backend='cublas' does not serve; accepted: " +
                       "precision None or 'tf32', or backend None or 'tiled'");
    }
  }
  return options;
}

// ---- the terms besides the operands ----

/// The arguments with a name, each None where it is left out.
struct Terms {
  nb::handle out = Py_None, dtype = Py_None, c = Py_None, alpha = Py_None, beta = Py_None, bias = Py_None,
             epilogue = Py_None, aux = Py_None, scale_a = Py_None, scale_b = Py_None, precision = Py_None,
             backend = Py_None, autotune = Py_None, stream = Py_None, execution = Py_None;
};
const Keyword<Terms> kTerms[] = {
    {Name("out"), &Terms::out},
    {Name("dtype"), &Terms::dtype},
    {Name("c"), &Terms::c},
    {Name("alpha"), &Terms::alpha},
    {Name("beta"), &Terms::beta},
    {Name("bias"), &Terms::bias},
    {Name("epilogue"), &Terms::epilogue},
    {Name("aux"), &Terms::aux},
    {Name("scale_a"), &Terms::scale_a},
    {Name("scale_b"), &Terms::scale_b},
    {Name("precision"), &Terms::precision},
    {Name("backend"), &Terms::backend},
    {Name("autotune"), &Terms::autotune},
    {Name("stream"), &Terms::stream},
    {Name("execution"), &Terms::execution},
};

nb::object one() { return nb::int_(1); }

Terms read_terms(nb::handle a, nb::handle b, nb::dict given) {
  Terms terms;
  if (is_missing(a) || is_missing(b)) refuse_call(kFunction, a, b, given);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(given.ptr(), &at, &name, &value);) {
    const Keyword<Terms>* term = find_keyword(kTerms, name);
    if (!term) refuse_call(kFunction, a, b, given);
    terms.*term->place = value;
  }
  if (terms.alpha.is(one())) terms.alpha = Py_None;
  return terms;
}

Activation read_epilogue(nb::handle epilogue) {
  if (epilogue.is_none()) return Activation::none;
  if (equals(epilogue, "relu")) return Activation::relu;
  if (equals(epilogue, "gelu")) return Activation::gelu;
  if (equals(epilogue, "gelu_tanh")) return Activation::gelu_tanh;
  bad_choice("epilogue", epilogue, "None, 'relu', 'gelu' (exact), 'gelu_tanh'");
}

/// Throws ValueError for options that are wrong for any arrays.
void check_terms(const Terms& terms) {
  if (!terms.beta.is_none() && terms.c.is_none()) {
    throw ValueError(std::string(kFunction) + ": beta is given, and there is no c for it to multiply; accepted: both");
  }
  if (!terms.autotune.is_none() && !PyBool_Check(terms.autotune.ptr())) {
    bad_choice("autotune", terms.autotune, "None, True, False");
  }
  read_epilogue(terms.epilogue);
}

/// Is every product to be tuned, as inside `interop.autotune`?
std::atomic<bool> g_tunes_all{false};

bool asks_tuning(const Terms& terms) {
  return terms.autotune.is_none() ? g_tunes_all.load(std::memory_order_relaxed) : terms.autotune.is(Py_True);
}

bool is_scalar(nb::handle x) {
  return PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr()) || PyComplex_Check(x.ptr()) ||
         nb::isinstance(x, kNumpyGeneric.get());
}

// ---- JAX ----

/// JAX arrays and tracers alone, with no `execution`: one JAX primitive, on XLA's stream.
bool is_jax_call(nb::handle a, nb::handle b, const Terms& terms) {
  bool traced = false;
  const auto is_jax = [&](nb::handle x, const char* name) {
    const exchange::Route& route = exchange::route_of(x, kFunction, name);
    traced |= &route == &exchange::jax_tracer_route();
    return std::strcmp(route.library(), "jax") == 0;
  };
  if (!is_jax(a, "a") || !is_jax(b, "b")) return false;
  if (!terms.c.is_none() && !is_jax(terms.c, "c")) return false;
  if (!terms.bias.is_none() && !is_jax(terms.bias, "bias")) return false;
  return terms.execution.is_none() || traced;
}

bool is_concrete(nb::handle x) { return exchange::find_route(x) == &exchange::jax_array_route(); }

/// What is given, for interop.jax.matmul; throws for what no products of JAX have.
nb::dict jax_keywords(const Terms& terms) {
  nb::dict keywords;
  for (const Keyword<Terms>& term : kTerms) {
    const nb::handle value = terms.*term.place;
    if (!value.is_none()) keywords[nb::handle(term.name.get())] = value;
  }
  if (!terms.stream.is_none()) {
    keywords["stream"] = reinterpret_cast<uintptr_t>(exchange::stream_argument(terms.stream, kFunction));
  }
  if (!terms.autotune.is_none()) {
    throw ValueError(std::string(kFunction) + ": autotune is given, and the arrays are JAX's, whose products XLA " +
                     "launches; accepted: None (choices that were made with other arrays serve JAX's, too)");
  }
  return keywords;
}

nb::object matmul_in_jax(nb::handle a, nb::handle b, nb::dict given, const Terms& terms) {
  exchange::enter_foreign(kFunction, "JAX");
  if (given.size() == 0 && is_concrete(a) && is_concrete(b)) return kJaxMatmulOfArrays.get()(a, b);
  return kJaxMatmul.get()(a, b, **jax_keywords(terms));
}

// ---- dtypes and factors ----

DLDataType dtype_called(const std::string& name) {
  const auto found = exchange::dtype_from_name(name);
  if (!found) throw TypeError(std::string(kFunction) + ": dtype is " + name + "; accepted: " + ops::kMatmulDtypes);
  return *found;
}

DLDataType promote(const char* library, DLDataType a, DLDataType b) {
  if (a == b) return a;
  return dtype_called(nb::cast<std::string>(kPromote.get()(
      kFunction, library, false, nb::make_tuple(dtype_name(a), false), nb::make_tuple(dtype_name(b), false))));
}

/// The dtype of the product: that of its operands, as their library promotes them, or what `dtype=` widens that to.
DLDataType result_dtype(const char* library, DLDataType a, DLDataType b, nb::handle asked) {
  ops::check_matmul_dtypes(a, b);
  const bool of_float8 = ops::is_float8(a);
  if (asked.is_none()) return of_float8 ? kBfloat16 : promote(library, a, b);
  const DLDataType wanted = dtype_called(nb::cast<std::string>(kDtypeName.get()(kFunction, asked)));
  if (of_float8) return wanted;  // the rules of shapes and dtypes look at it
  const DLDataType common = promote(library, a, b);
  if (common == wanted || promote(library, common, wanted) == wanted) return wanted;
  throw TypeError(std::string(kFunction) + ": dtype is " + dtype_name(wanted) + ", and the operands are " +
                  dtype_name(common) + "; accepted: a dtype that " + library + " promotes them to");
}

/// A factor as a value of the dtype that the kernels take it in.
ScalarValue factor_value(const char* name, nb::handle factor, DLDataType result) {
  const DLDataType dtype = factor_dtype(result);
  ScalarValue value{};
  const auto put = [&](const auto x) { std::memcpy(value.bytes, &x, sizeof x); };
  if (PyFloat_CheckExact(factor.ptr()) || (PyLong_CheckExact(factor.ptr()) && dtype.code == kDLFloat)) {
    const double number = PyFloat_AsDouble(factor.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();  // an integer beyond every float: refused below, by name
    } else if (dtype == kFloat32) {
      put(static_cast<float>(number));
      return value;
    } else if (dtype == kFloat64) {
      put(number);
      return value;
    }
  }
  return value_by_numpy(
      kFactor.get()(kFunction, name, factor, exchange::numpy_dtype(result), exchange::numpy_dtype(dtype)), dtype);
}

// ---- one product ----

/// The arguments of a call that are arrays, and where each one stands among them; -1: it is not there.
struct Arrays {
  Argument arguments[7];
  int count = 2;
  int c = -1, bias = -1, aux = -1, scale_a = -1, scale_b = -1;

  Arrays(nb::handle a, nb::handle b, const Terms& terms) {
    arguments[0] = {"a", a, Access::takes_conjugated};
    arguments[1] = {"b", b, Access::takes_conjugated};
    add(c, {"c", terms.c, Access::may_be_out});
    add(bias, {"bias", terms.bias});
    add(aux, {"aux", terms.aux, Access::write});
    add_scale(scale_a, "scale_a", terms.scale_a);
    add_scale(scale_b, "scale_b", terms.scale_b);
  }

 private:
  void add(int& place, const Argument& argument) {
    if (argument.object == Py_None) return;
    place = count;
    arguments[count++] = argument;
  }
  void add_scale(int& place, const char* name, nb::handle scale) {
    if (!scale.is_none() && !is_scalar(scale)) add(place, {name, scale});
  }
};

/// A call, with the shape and dtype of its result.
struct Product {
  Terms terms;
  Arrays arrays;
  Call call;
  ops::MatmulResult result;
  ops::MatmulTerms beside;

  Product(nb::handle a, nb::handle b, const Terms& given, bool only_looks = false)
      : terms(given),
        arrays(a, b, given),
        call(kFunction, arrays.arguments, arrays.count, {given.out, given.stream, given.execution, only_looks}) {
    const DLTensor &left = call.tensor(0), &right = call.tensor(1);
    const DLDataType dtype = result_dtype(call.library(), left.dtype, right.dtype, terms.dtype);
    result = ops::matmul_result(left, right, dtype);
    const auto tensor = [&](int place) { return place < 0 ? nullptr : &call.tensor(place); };
    beside = {tensor(arrays.c), tensor(arrays.bias), tensor(arrays.aux), read_epilogue(terms.epilogue)};
    ops::check_terms(beside, result.shape, (left.ndim > 1) + (right.ndim > 1), dtype);
    check_scales();
  }

  bool is_plain() const {
    return !has_factors() && arrays.count == 2 && terms.scale_a.is_none() && terms.scale_b.is_none() &&
           beside.activation == Activation::none;
  }
  bool has_factors() const { return !terms.alpha.is_none() || !terms.beta.is_none(); }
  nb::object alpha() const { return terms.alpha.is_none() ? one() : nb::borrow(terms.alpha); }
  nb::object beta() const { return terms.beta.is_none() ? one() : nb::borrow(terms.beta); }
  nb::object numpy_of(int place) const { return place < 0 ? nb::none() : call.numpy(place); }

  /// The scale of an operand that is not an array; 1 if there is none.
  static double scale_of(const char* name, nb::handle scale) {
    if (scale.is_none() || !is_scalar(scale)) return 1;
    const double value = PyFloat_AsDouble(scale.ptr());
    if (!PyErr_Occurred()) return value;
    const bool is_beyond = PyErr_ExceptionMatches(PyExc_OverflowError);
    if (!is_beyond && !PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
    PyErr_Clear();
    if (is_beyond) {
      PyErr_Format(PyExc_OverflowError,
                   "%s: %s is an integer beyond every float; accepted: a real number, or one float32", kFunction, name);
      nb::raise_python_error();
    }
    throw TypeError(std::string(kFunction) + ": " + name + " is " + exchange::shown(scale) + " (" +
                    exchange::type_text(scale) + "); accepted: a real number, or one float32");
  }

 private:
  void check_scales() const {
    for (const auto& [name, scale, place] :
         {std::tuple{"scale_a", terms.scale_a, arrays.scale_a}, std::tuple{"scale_b", terms.scale_b, arrays.scale_b}}) {
      if (scale.is_none()) continue;
      if (!ops::is_float8(call.tensor(0).dtype)) {
        throw ValueError(std::string(kFunction) + ": " + name + " is given, and the operands are " +
                         dtype_name(call.tensor(0).dtype) +
                         "; accepted: None, or float8 operands (alpha= scales others)");
      }
      if (place < 0) {
        scale_of(name, scale);
        continue;
      }
      const DLTensor& tensor = call.tensor(place);
      if (tensor.dtype == kFloat32 && element_count(tensor) == 1) continue;
      throw ValueError(std::string(kFunction) + ": " + name + " is " + dtype_name(tensor.dtype) + " of shape " +
                       shape_text(tensor) + "; accepted: a scalar, or one float32");
    }
  }
};

/// By NumPy: its own product where there is nothing else to do, and no conversion.
void matmul_on_host(const Product& product) {
  const Call& call = product.call;
  const DLDataType dtype = product.result.dtype;
  const bool is_half = dtype.bits == 16 && is_float(dtype);
  const bool converts = call.tensor(0).dtype != dtype || call.tensor(1).dtype != dtype || is_half ||
                        call.conjugated(0) || call.conjugated(1);
  if (product.is_plain() && !converts) {
    nb::dict keywords;
    keywords["out"] = call.numpy_output();
    std::optional<exchange::Within> guard;
    if (!led_by_numpy(call)) {
      nb::dict quiet;
      quiet["all"] = "ignore";
      guard.emplace(kErrstate.get()(**quiet));
    }
    kNumpyMatmul.get()(call.numpy(0), call.numpy(1), **keywords);
    return;
  }
  nb::dict keywords;
  keywords["conjugates"] = nb::make_tuple(call.conjugated(0), call.conjugated(1));
  keywords["c"] = product.numpy_of(product.arrays.c);
  keywords["alpha"] = product.alpha();
  keywords["beta"] = product.beta();
  keywords["bias"] = product.numpy_of(product.arrays.bias);
  keywords["epilogue"] = product.terms.epilogue;
  keywords["aux"] = product.numpy_of(product.arrays.aux);
  nb::list scales;
  for (const auto& [scale, place] : {std::pair{product.terms.scale_a, product.arrays.scale_a},
                                     std::pair{product.terms.scale_b, product.arrays.scale_b}}) {
    if (!scale.is_none()) scales.append(place < 0 ? nb::borrow(scale) : product.numpy_of(place));
  }
  keywords["scales"] = scales;
  keywords["warns"] = led_by_numpy(call);
  kOnHost.get()(call.numpy(0), call.numpy(1), call.numpy_output(), exchange::numpy_dtype(dtype), **keywords);
}

/// Tells the CUDA layer, once, where cuda-pathfinder finds cuBLASLt. Not at import: it takes a while.
void find_cublas() {
  static bool found = false;
  if (found) return;
  const auto paths = nb::cast<std::vector<std::string>>(kFindPaths.get()());
  if (found) return;  // by another thread meanwhile, which may be reading the paths by now
  found = true;
  std::vector<const char*> pointers;
  for (const std::string& path : paths) pointers.push_back(path.c_str());
  cuda::set_cublas_paths(pointers.data(), static_cast<int>(pointers.size()));
}

void refuse_backend(nb::handle backend) {
  if (backend.is_none()) return;
  throw ValueError(std::string(kFunction) + ": backend is given, but the arrays are in host memory, where NumPy " +
                   "computes; accepted: None, or execution='cuda' with it");
}

constexpr size_t kAlignment = 256;  // of what a kernel's workspace is cut into
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// A copy of an operand in the dtype of the product. It is compact, except that broadcast dimensions stay broadcast.
class Converted {
 public:
  Converted(const DLTensor& operand, DLDataType dtype) : operand_(operand) {
    int64_t stride = 1;
    for (int i = operand.ndim - 1; i >= 0; --i) {
      const bool repeats = operand.strides[i] == 0;
      sizes_[i] = repeats ? std::min<int64_t>(operand.shape[i], 1) : operand.shape[i];
      strides_[i] = repeats ? 0 : stride;
      stride *= std::max<int64_t>(sizes_[i], 1);
    }
    tensor_ = {nullptr, operand.device, operand.ndim, dtype, operand.shape, strides_, 0};
    place(reinterpret_cast<void*>(uintptr_t{1} << 20));  // as well aligned as it will be
  }
  Converted(const Converted&) = delete;
  Converted& operator=(const Converted&) = delete;

  size_t bytes() const {
    return aligned(static_cast<size_t>(element_count(sizes_, tensor_.ndim) * item_bytes(tensor_.dtype)));
  }
  void place(void* memory) { tensor_.data = memory; }
  const DLTensor& operator*() const { return tensor_; }

  /// The operation that fills it.
  Elementwise work() const {
    Elementwise copy;
    copy.dtype = copy.out_dtype = tensor_.dtype;
    DLTensor out = tensor_, input = operand_;
    out.shape = input.shape = const_cast<int64_t*>(sizes_);  // only read
    ops::plan_loop(copy.loop, out, &input, 1);
    copy.out = out.data;
    copy.inputs[0].data = input.data;
    copy.inputs[0].dtype = input.dtype;
    return copy;
  }

 private:
  const DLTensor& operand_;
  int64_t sizes_[kMaxDims];
  int64_t strides_[kMaxDims];
  DLTensor tensor_{};
};

/// What a product on a GPU is: the operands that are converted first, then the kernel.
class DeviceProduct {
 public:
  DeviceProduct(const Product& product, const DLTensor& out, cuda::MatmulOptions options) {
    if (product.terms.autotune.is(Py_False)) options.uses_choices = false;
    options_ = options;
    const Call& call = product.call;
    const DLDataType dtype = product.result.dtype;
    const DLTensor* operands[2] = {&call.tensor(0), &call.tensor(1)};
    if (!ops::reads_matmul(operands[0]->dtype, operands[1]->dtype, dtype)) {
      for (int i = 0; i < 2; ++i) {
        if (operands[i]->dtype == dtype) continue;
        converted_[i] = std::make_unique<Converted>(*operands[i], dtype);
        operands[i] = &**converted_[i];
      }
    }
    gemm_ = ops::plan_matmul(*operands[0], *operands[1], out, product.beside);
    gemm_.a_conjugated = call.conjugated(0);
    gemm_.b_conjugated = call.conjugated(1);
    // Explained, host arrays have no copies yet: those would be as well aligned as the output.
    if (out.device.device_type == kDLCPU) gemm_.a = gemm_.b = out.data;
    set_scales(product);
    plan_ = cuda::plan_matmul(gemm_, options);
  }

  size_t workspace_bytes() const {
    size_t bytes = plan_.workspace_bytes;
    for (const auto& operand : converted_) bytes += operand ? operand->bytes() : 0;
    return bytes;
  }

  void launch(Call& call, bool tunes) {
    char* memory = static_cast<char*>(call.workspace(workspace_bytes()));
    tunes = tunes && plan_.tunable && !cuda::is_capturing(call.stream());
    void* const tuning = tunes ? call.workspace(cuda::tuning_bytes(gemm_, options_)) : nullptr;
    for (int i = 0; i < 2; ++i) {
      if (!converted_[i]) continue;
      converted_[i]->place(memory);
      (i == 0 ? gemm_.a : gemm_.b) = memory;
      memory += converted_[i]->bytes();
    }
    call.launch([&](cudaStream_t s) {
      for (const auto& operand : converted_) {
        if (operand) cuda::launch_elementwise(operand->work(), s);
      }
      if (tunes) {
        cuda::tune_matmul(gemm_, options_, tuning, s);
        plan_ = cuda::plan_matmul(gemm_, options_);
        memory = static_cast<char*>(tuning);
      }
      cuda::launch_matmul(gemm_, plan_, memory, s);
    });
  }

  std::string describe() const {
    std::string text = cuda::describe(gemm_, plan_);
    for (int i = 0; i < 2; ++i) {
      if (converted_[i]) {
        text += std::string("; ") + (i == 0 ? "a" : "b") + " is converted to " + dtype_name((**converted_[i]).dtype) +
                " first, in the workspace";
      }
    }
    return text;
  }

 private:
  /// alpha and beta, and the scales of float8: numbers are part of alpha, arrays are read by the kernel.
  void set_scales(const Product& product) {
    const double scale =
        Product::scale_of("scale_a", product.terms.scale_a) * Product::scale_of("scale_b", product.terms.scale_b);
    if (product.has_factors() || scale != 1) {
      const DLDataType dtype = product.result.dtype;
      ScalarValue alpha = factor_value("alpha", product.alpha(), dtype);
      if (scale != 1) {  // of float8, whose factors are float32
        float value;
        std::memcpy(&value, alpha.bytes, sizeof value);
        value = static_cast<float>(value * scale);
        std::memcpy(alpha.bytes, &value, sizeof value);
      }
      set_factors(gemm_, alpha, factor_value("beta", product.beta(), dtype));
    }
    const auto pointer = [&](int place) {
      return place < 0 ? nullptr : static_cast<const float*>(product.call.tensor(place).data);
    };
    gemm_.factor_a = pointer(product.arrays.scale_a);
    gemm_.factor_b = pointer(product.arrays.scale_b);
  }

  std::unique_ptr<Converted> converted_[2];  // null for what is read as it is
  Gemm gemm_;
  cuda::MatmulOptions options_;
  cuda::MatmulPlan plan_;
};

nb::object matmul(nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Terms terms = read_terms(a, b, given);
  const cuda::MatmulOptions options = kernel_options(terms.backend, terms.precision);
  check_terms(terms);
  if (is_jax_call(a, b, terms)) return matmul_in_jax(a, b, given, terms);

  return exchange::as_call(kFunction, !terms.execution.is_none(), [&] {
    Product product(a, b, terms);
    Call& call = product.call;
    if (call.on_host()) {
      refuse_backend(terms.backend);
      call.output(product.result.shape, product.result.dtype);
      matmul_on_host(product);
      return call.hand_over();
    }
    find_cublas();
    const DLTensor& c = call.output(product.result.shape, product.result.dtype);
    DeviceProduct(product, c, options).launch(call, asks_tuning(terms));
    return call.hand_over();
  });
}

/// What a call of `matmul` would do; None for arrays of JAX alone, which JAX computes. As `matmul`, without the launch.
nb::object explain_matmul(nb::handle a, nb::handle b, nb::dict given) {
  const exchange::CallGuard guard;
  const Terms terms = read_terms(a, b, given);
  const cuda::MatmulOptions options = kernel_options(terms.backend, terms.precision);
  check_terms(terms);
  if (is_jax_call(a, b, terms)) {
    jax_keywords(terms);
    return nb::none();
  }

  Product product(a, b, terms, true);
  Call& call = product.call;
  if (call.on_host()) refuse_backend(terms.backend);
  const DLTensor& c = call.output(product.result.shape, product.result.dtype);
  auto explained = nb::borrow<nb::dict>(call.explain());
  if (call.on_host()) {
    if (product.has_factors()) {
      factor_value("alpha", product.alpha(), product.result.dtype);
      factor_value("beta", product.beta(), product.result.dtype);
    }
    explained["algorithm"] = "numpy.matmul, on views of the arrays";
    explained["workspace_bytes"] = 0;
    return explained;
  }
  find_cublas();
  const DeviceProduct planned(product, c, options);
  explained["algorithm"] = planned.describe();
  explained["workspace_bytes"] = planned.workspace_bytes();
  return explained;
}

DLDataType operand_dtype(const char* name, const std::string& dtype) {
  const auto known = exchange::dtype_from_name(dtype);
  if (known) return *known;
  throw TypeError(std::string(kFunction) + ": " + name + " is " + dtype + "; accepted: " + ops::kMatmulDtypes);
}

/// A compact array of this shape and dtype, without memory: all that is known of JAX's tracers.
class Compact {
 public:
  Compact(const char* name, nb::handle shape, const std::string& dtype)
      : Compact(read_shape(name, shape), operand_dtype(name, dtype)) {}
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
    Shape shape;
    shape.ndim = read_sizes(kFunction, name, sizes, shape.sizes);
    return shape;
  }

  Shape shape_;
  int64_t strides_[kMaxDims];
  DLTensor tensor_{};
};

nb::object matmul_result(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape, const std::string& b_dtype,
                         const std::string& dtype) {
  const Compact a("a", a_shape, a_dtype);
  const Compact b("b", b_shape, b_dtype);
  return exchange::shape_tuple(ops::matmul_result(*a, *b, dtype_called(dtype)).shape);
}

Gemm plan_compact(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape, const std::string& b_dtype,
                  const std::string& dtype) {
  const Compact a("a", a_shape, a_dtype);
  const Compact b("b", b_shape, b_dtype);
  const Compact c(ops::matmul_result(*a, *b, dtype_called(dtype)));
  return ops::plan_matmul(*a, *b, *c);
}

int matmul_batch_ndim(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape, const std::string& b_dtype,
                      const std::string& dtype) {
  return plan_compact(a_shape, a_dtype, b_shape, b_dtype, dtype).batch_ndim;
}

std::size_t matmul_workspace(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape,
                             const std::string& b_dtype, nb::handle backend, nb::handle precision,
                             const std::string& dtype) {
  return cuda::largest_workspace(plan_compact(a_shape, a_dtype, b_shape, b_dtype, dtype),
                                 kernel_options(backend, precision));
}

std::string matmul_dtype(const char* library, const std::string& a, const std::string& b, nb::handle dtype) {
  const DLDataType left = operand_dtype("a", a);
  return dtype_name(result_dtype(library, left, operand_dtype("b", b), dtype));
}

/// For JAX's tracers: the terms as (shape, dtype), or None.
void check_matmul_terms(nb::handle a_shape, const std::string& a_dtype, nb::handle b_shape, const std::string& b_dtype,
                        const std::string& dtype, nb::handle c, nb::handle bias, nb::handle epilogue) {
  const Compact a("a", a_shape, a_dtype);
  const Compact b("b", b_shape, b_dtype);
  const ops::MatmulResult result = ops::matmul_result(*a, *b, dtype_called(dtype));
  std::optional<Compact> addend, row;
  ops::MatmulTerms terms;
  terms.activation = read_epilogue(epilogue);
  if (!c.is_none()) terms.c = &*addend.emplace("c", nb::object(c[0]), nb::cast<std::string>(c[1]));
  if (!bias.is_none()) terms.bias = &*row.emplace("bias", nb::object(bias[0]), nb::cast<std::string>(bias[1]));
  ops::check_terms(terms, result.shape, ((*a).ndim > 1) + ((*b).ndim > 1), result.dtype);
}

bool reads_matmul(const std::string& a, const std::string& b, const std::string& result) {
  return ops::reads_matmul(dtype_called(a), dtype_called(b), dtype_called(result));
}

nb::list matmul_choices(int device) {
  nb::list listed;
  for (const cuda::MatmulChoice& choice : cuda::choices(device)) {
    nb::dict entry;
    entry["product"] = choice.product;
    entry["backend"] = choice.tiled ? "tiled" : "cublas";
    entry["microseconds"] = choice.microseconds;
    entry["untuned_microseconds"] = choice.untuned_microseconds;
    entry["key"] = choice.key;
    entry["algorithm"] = choice.algorithm;
    listed.append(entry);
  }
  return listed;
}

void keep_matmul_choice(int device, const nb::dict& entry) {
  const auto text = [&](const char* name) { return nb::cast<std::string>(nb::str(nb::object(entry[name]))); };
  cuda::MatmulChoice choice;
  choice.product = text("product");
  choice.key = text("key");
  choice.algorithm = text("algorithm");
  choice.tiled = text("backend") == "tiled";
  choice.microseconds = PyFloat_AsDouble(nb::object(entry["microseconds"]).ptr());
  choice.untuned_microseconds = PyFloat_AsDouble(nb::object(entry["untuned_microseconds"]).ptr());
  if (PyErr_Occurred()) nb::raise_python_error();
  if (!cuda::keep_choice(device, choice)) throw ValueError("the key or the algorithm of " + choice.product);
}

}  // namespace

void bind_matmul(nb::module_& m) {
  m.def("matmul", &matmul, nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::sig("def matmul(a: typing.Any, b: typing.Any, options: dict[str, typing.Any], /) -> typing.Any"),
        "interop.matmul, with the arguments that have a name in a dict.");
  m.def(
      "tune_products", [](bool tunes) { g_tunes_all.store(tunes); }, nb::arg(),
      "Tune every product from now on, or no longer.");
  m.def("matmul_choices", &matmul_choices, nb::arg(),
        nb::sig("def matmul_choices(device: int, /) -> list[dict[str, typing.Any]]"), "What tuning chose on a device.");
  m.def("keep_matmul_choice", &keep_matmul_choice, nb::arg(), nb::arg(),
        nb::sig("def keep_matmul_choice(device: int, choice: dict[str, typing.Any], /) -> None"),
        "Take a choice as matmul_choices lists it; KeyError, TypeError or ValueError where it is malformed.");
  m.def(
      "cublas_version",
      [] {
        find_cublas();
        return cuda::cublas_version();
      },
      "The version of cuBLASLt, \"\" if there is none.");
  m.def("find_cublas", &find_cublas, "Look for cuBLASLt, once; device calls of matmul do so themselves.");
  m.def(
      "cublas_status",
      [] {
        find_cublas();
        return cuda::cublas_status();
      },
      "Where cuBLASLt was found, or why not.");
  m.def("explain_matmul", &explain_matmul, nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::sig("def explain_matmul(a: typing.Any, b: typing.Any, options: dict[str, typing.Any], /) -> "
                "dict[str, typing.Any] | None"),
        "What interop.matmul would do with these arguments; None where JAX would do it. Launches and allocates "
        "nothing.");
  m.def("matmul_result", &matmul_result,
        nb::sig("def matmul_result(a_shape: tuple[int, ...], a_dtype: str, b_shape: tuple[int, ...], b_dtype: str, "
                "dtype: str, /) -> tuple[int, ...]"),
        "The shape of a product, or the error that interop.matmul raises for such operands.");
  m.def("matmul_batch_ndim", &matmul_batch_ndim,
        nb::sig("def matmul_batch_ndim(a_shape: tuple[int, ...], a_dtype: str, b_shape: tuple[int, ...], b_dtype: str, "
                "dtype: str, /) -> int"),
        "Over how many strides the batch of a product of compact arrays runs, once collapsed.");
  m.def("matmul_workspace", &matmul_workspace, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg(),
        nb::sig("def matmul_workspace(a_shape: tuple[int, ...], a_dtype: str, b_shape: tuple[int, ...], b_dtype: str, "
                "backend: str | None, precision: str | None, dtype: str, /) -> int"),
        "The most bytes of workspace that a product of compact arrays, of this dtype, can need on a GPU.");
  m.def("matmul_dtype", &matmul_dtype, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::sig("def matmul_dtype(library: str, a: str, b: str, dtype: typing.Any, /) -> str"),
        "The dtype of a product of arrays of these dtypes, or the error that interop.matmul raises.");
  m.def("check_matmul_terms", &check_matmul_terms, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::sig("def check_matmul_terms(a_shape: tuple[int, ...], a_dtype: str, b_shape: tuple[int, ...], "
                "b_dtype: str, dtype: str, c: tuple[tuple[int, ...], str] | None, "
                "bias: tuple[tuple[int, ...], str] | None, epilogue: str | None, /) -> None"),
        "Raises what interop.matmul raises of a c and a bias of these shapes and dtypes, and of an epilogue.");
  m.def(
      "check_matmul_options", [](nb::handle backend, nb::handle precision) { kernel_options(backend, precision); },
      nb::arg().none(), nb::arg().none(),
      nb::sig("def check_matmul_options(backend: typing.Any, precision: typing.Any, /) -> None"),
      "Raises what interop.matmul raises of these two.");
  m.def("reads_matmul", &reads_matmul, nb::sig("def reads_matmul(a: str, b: str, result: str, /) -> bool"),
        "Do the kernels read operands of these dtypes as they are, for a product of that one?");
}

}  // namespace interop::bindings
