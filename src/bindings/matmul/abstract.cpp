/// A product of arrays without memory: what is known of it from shapes and dtypes.
#include "bindings/matmul/abstract.h"

#include <nanobind/stl/string.h>

#include <optional>

#include "bindings/functions/results.h"
#include "bindings/matmul/device_product.h"
#include "exchange/routes/numpy.h"
#include "exchange/typestr.h"

namespace interop::bindings {
namespace {

DLDataType operand_dtype(const char* name, const std::string& dtype) {
  const auto known = exchange::dtype_from_name(dtype);
  if (known) return *known;
  throw TypeError(std::string(kMatmul) + ": " + name + " is " + dtype + "; accepted: " + ops::kMatmulDtypes);
}

/// A compact array of this shape and dtype, without memory: all that is known of JAX's tracers.
class Compact {
 public:
  /// From (shape, dtype) of Python.
  Compact(const char* name, nb::handle given)
      : Compact(read_shape(name, nb::object(given[0])), operand_dtype(name, nb::cast<std::string>(given[1]))) {}
  explicit Compact(const ops::MatmulResult& result) : Compact(result.shape, result.dtype) {}
  Compact(const Compact&) = delete;
  Compact& operator=(const Compact&) = delete;
  const DLTensor& operator*() const { return tensor_; }
  void transpose() { transpose_matrices(tensor_); }

 private:
  Compact(const Shape& shape, DLDataType dtype) : shape_(shape) {
    compact_strides(shape_.sizes, shape_.ndim, strides_);
    tensor_ = {nullptr, {kDLCPU, 0}, shape_.ndim, dtype, shape_.sizes, strides_, 0};
  }
  static Shape read_shape(const char* name, nb::handle sizes) {
    Shape shape;
    shape.ndim = read_sizes(kMatmul, name, sizes, shape.sizes);
    return shape;
  }

  Shape shape_;
  int64_t strides_[kMaxDims];
  DLTensor tensor_{};
};

/// What is described of an array, or nothing where a number, or None, stands in its place.
class MaybeCompact {
 public:
  MaybeCompact(const char* name, nb::handle given) {
    if (PyTuple_Check(given.ptr())) array_.emplace(name, given);
  }
  const DLTensor* get() const { return array_ ? &**array_ : nullptr; }

 private:
  std::optional<Compact> array_;
};

nb::dict abstract_matmul(nb::handle a_given, nb::handle b_given, nb::handle dtype, nb::handle library,
                         nb::kwargs given) {
  const Terms terms = read_terms(a_given, b_given, given);
  read_kernel_options(terms.backend, terms.precision);  // for what it throws
  check_terms(terms);
  const Compact a("a", a_given), b("b", b_given);
  const DLDataType result_dtype = library.is_none()
                                      ? dtype_called(nb::cast<std::string>(dtype))
                                      : product_dtype(nb::cast<const char*>(library), (*a).dtype, (*b).dtype, dtype);
  const ops::MatmulResult result = ops::matmul_result(*a, *b, result_dtype);
  const MaybeCompact c("c", terms.c), bias("bias", terms.bias), scale_a("scale_a", terms.scale_a),
      scale_b("scale_b", terms.scale_b);
  ops::check_terms({c.get(), bias.get(), nullptr, read_epilogue(terms.epilogue)}, result.shape,
                   ((*a).ndim > 1) + ((*b).ndim > 1), result.dtype);
  check_scale("scale_a", terms.scale_a, scale_a.get(), (*a).dtype);
  check_scale("scale_b", terms.scale_b, scale_b.get(), (*a).dtype);
  if (!terms.alpha.is_none()) factor_value("alpha", terms.alpha, result.dtype);
  if (!terms.beta.is_none()) factor_value("beta", terms.beta, result.dtype);
  nb::dict answer;
  answer["shape"] = exchange::shape_tuple(result.shape);
  answer["dtype"] = dtype_name(result.dtype);
  answer["reads"] = ops::reads_matmul((*a).dtype, (*b).dtype, result.dtype);
  return answer;
}

std::size_t matmul_workspace(nb::handle a_given, nb::handle b_given, const std::string& dtype, nb::handle backend,
                             nb::handle precision, bool transpose_a, bool transpose_b) {
  Compact a("a", a_given), b("b", b_given);
  if (transpose_a) a.transpose();
  if (transpose_b) b.transpose();
  const Compact out(ops::matmul_result(*a, *b, dtype_called(dtype)));
  find_cublas();
  return cuda::largest_workspace(ops::plan_matmul(*a, *b, *out), read_kernel_options(backend, precision));
}

}  // namespace

void bind_abstract_matmul(nb::module_& m) {
  m.def("abstract_matmul", &abstract_matmul, nb::arg("a"), nb::arg("b"), nb::arg("dtype").none() = nb::none(),
        nb::kw_only(), nb::arg("library").none() = nb::none(), nb::arg("terms"),
        nb::sig("def abstract_matmul(a: tuple[tuple[int, ...], str], b: tuple[tuple[int, ...], str], "
                "dtype: typing.Any = None, *, library: str | None = None, **terms: typing.Any) -> dict[str, "
                "typing.Any]"),
        "What a product of arrays of these (shape, dtype) is, or the error that interop.matmul raises: its shape and "
        "dtype, and whether kernels read the operands as they are. `dtype` is the product's own, or with `library`, "
        "whose promotion decides, what the caller asked for. Of the other arguments of interop.matmul, arrays are "
        "(shape, dtype), too.");
  m.def("matmul_workspace", &matmul_workspace, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::arg(), nb::arg(),
        nb::sig("def matmul_workspace(a: tuple[tuple[int, ...], str], b: tuple[tuple[int, ...], str], dtype: str, "
                "backend: str | None, precision: str | None, transpose_a: bool, transpose_b: bool, /) -> int"),
        "The most bytes of workspace that a product of such arrays, compact, or of the transposes of their matrices, "
        "can need on a GPU, or the error that the backend cannot take it.");
}

}  // namespace interop::bindings
