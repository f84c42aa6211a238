/// One product of a call: its arrays, and what the rules of shapes and dtypes say of it.
#include "bindings/matmul/product.h"

#include <cstring>

#include "bindings/promotion.h"
#include "bindings/scalars.h"
#include "exchange/python.h"
#include "exchange/routes/numpy.h"
#include "exchange/typestr.h"

namespace interop::bindings {
namespace {

const exchange::Lookup kNumpyDtype("numpy", "dtype");
const exchange::Name kName("name");

DLDataType promote(const char* library, DLDataType a, DLDataType b) {
  if (a == b) return a;
  if (const auto found = promotion::promote_arrays(kMatmul, library, false, {a, false}, {b, false})) return *found;
  return dtype_called(nb::cast<std::string>(promotion::promote(
      kMatmul, library, false, nb::make_tuple(dtype_name(a), false), nb::make_tuple(dtype_name(b), false))));
}

/// The name of a dtype of any library, or of the name itself. Throws TypeError for what is none.
std::string name_of(nb::handle dtype) {
  if (exchange::type_text(dtype) == "torch.dtype") return exchange::text_of(dtype).substr(std::strlen("torch."));
  try {
    return exchange::text_of(exchange::attribute(kNumpyDtype.get()(dtype), kName));
  } catch (nb::python_error& error) {  // NumPy's, of whatever kind
    if (!error.matches(PyExc_Exception)) throw;
    nb::raise_from(error, PyExc_TypeError, "%s: dtype is %s; accepted: None, a name, a dtype of NumPy, torch or JAX",
                   kMatmul, exchange::shown(dtype).c_str());
  }
}

}  // namespace

DLDataType dtype_called(const std::string& name) {
  const auto found = exchange::dtype_from_name(name);
  if (!found) throw TypeError(std::string(kMatmul) + ": dtype is " + name + "; accepted: " + ops::kMatmulDtypes);
  return *found;
}

DLDataType product_dtype(const char* library, DLDataType a, DLDataType b, nb::handle asked) {
  ops::check_matmul_dtypes(a, b);
  const bool of_float8 = ops::is_float8(a);
  if (asked.is_none()) return of_float8 ? kBfloat16 : promote(library, a, b);
  const DLDataType wanted = dtype_called(name_of(asked));
  if (of_float8) return wanted;  // the rules of shapes and dtypes look at it
  const DLDataType common = promote(library, a, b);
  if (common == wanted || promote(library, common, wanted) == wanted) return wanted;
  throw TypeError(std::string(kMatmul) + ": dtype is " + dtype_name(wanted) + ", and the operands are " +
                  dtype_name(common) + "; accepted: a dtype that " + library + " promotes them to");
}

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
  return promotion::factor_of(kMatmul, name, factor, result, dtype);
}

double scale_of(const char* name, nb::handle scale) {
  if (scale.is_none() || !is_number(scale)) return 1;
  const double value = PyFloat_AsDouble(scale.ptr());
  if (!PyErr_Occurred()) return value;
  const bool is_beyond = PyErr_ExceptionMatches(PyExc_OverflowError);
  if (!is_beyond && !PyErr_ExceptionMatches(PyExc_TypeError)) nb::raise_python_error();
  PyErr_Clear();
  if (is_beyond) {
    PyErr_Format(PyExc_OverflowError,
                 "%s: %s is an integer beyond every float; accepted: a real number, or one float32", kMatmul, name);
    nb::raise_python_error();
  }
  throw TypeError(std::string(kMatmul) + ": " + name + " is " + exchange::shown(scale) + " (" +
                  exchange::type_text(scale) + "); accepted: a real number, or one float32");
}

void check_scale(const char* name, nb::handle scale, const DLTensor* tensor, DLDataType operand) {
  if (scale.is_none()) return;
  if (!ops::is_float8(operand)) {
    throw ValueError(std::string(kMatmul) + ": " + name + " is given, and the operands are " + dtype_name(operand) +
                     "; accepted: None, or float8 operands (alpha= scales others)");
  }
  if (!tensor) {
    scale_of(name, scale);
    return;
  }
  if (tensor->dtype == kFloat32 && element_count(*tensor) == 1) return;
  throw ValueError(std::string(kMatmul) + ": " + name + " is " + dtype_name(tensor->dtype) + " of shape " +
                   shape_text(*tensor) + "; accepted: a scalar, or one float32");
}

Product::Product(nb::handle a, nb::handle b, const Terms& given, Reading reading, const Turned* turned)
    : terms(given),
      arrays(a, b, given),
      call(kMatmul, arrays.arguments, arrays.count,
           {given.out, given.stream, given.execution, reading.only_looks, false, false, reading.below_autograd}) {
  if (turned) turn(*turned);
  const DLTensor &left = operand(0), &right = operand(1);
  const DLDataType dtype = product_dtype(call.library(), left.dtype, right.dtype, terms.dtype);
  result = ops::matmul_result(left, right, dtype);
  const auto tensor = [&](int place) { return place < 0 ? nullptr : &call.tensor(place); };
  beside = {tensor(arrays.c), tensor(arrays.bias), tensor(arrays.aux), read_epilogue(terms.epilogue)};
  ops::check_terms(beside, result.shape, (left.ndim > 1) + (right.ndim > 1), dtype);
  check_scale("scale_a", terms.scale_a, tensor(arrays.scale_a), left.dtype);
  check_scale("scale_b", terms.scale_b, tensor(arrays.scale_b), left.dtype);
}

void Product::turn(const Turned& turned) {
  for (int i = 0; i < 2; ++i) {
    views_[i] = std::make_unique<View>(call.tensor(i), call.conjugated(i));
    View& view = *views_[i];
    if (turned.column[i]) view.insert((*view).ndim);
    if (turned.row[i]) view.insert((*view).ndim - 1);
    if (turned.adjoint[i]) view.adjoin();
  }
  drops_row_ = turned.drops_row;
  drops_column_ = turned.drops_column;
  if (turned.sums && (**views_[0]).ndim > 2) View::fold(*views_[0], *views_[1]);
}

const DLTensor& Product::make_output() {
  Shape shape = result.shape;
  if (drops_row_) {
    shape.sizes[shape.ndim - 2] = shape.sizes[shape.ndim - 1];
    --shape.ndim;
  }
  if (drops_column_) --shape.ndim;
  const DLTensor& made = call.output(shape, result.dtype);
  if (!drops_row_ && !drops_column_) return made;
  out_ = std::make_unique<View>(made, false);
  if (drops_column_) out_->insert(made.ndim);
  if (drops_row_) out_->insert((**out_).ndim - 1);
  return **out_;
}

}  // namespace interop::bindings
