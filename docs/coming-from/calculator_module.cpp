// What makes a module of CPython of calculator.h.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdexcept>

#include "calculator.h"

namespace {

template <int (*function)(int, int)>
PyObject* of_integers(PyObject*, PyObject* arguments) {
  int a, b;
  if (!PyArg_ParseTuple(arguments, "ii", &a, &b)) return nullptr;
  return PyLong_FromLong(function(a, b));
}

PyObject* divide(PyObject*, PyObject* arguments) {
  double a, b;
  if (!PyArg_ParseTuple(arguments, "dd", &a, &b)) return nullptr;
  try {
    return PyFloat_FromDouble(calculator::divide(a, b));
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
}

PyMethodDef functions[] = {
    {"add", of_integers<calculator::add>, METH_VARARGS, "Add two integers."},
    {"subtract", of_integers<calculator::subtract>, METH_VARARGS, "Subtract two integers."},
    {"multiply", of_integers<calculator::multiply>, METH_VARARGS, "Multiply two integers."},
    {"divide", divide, METH_VARARGS, "Divide two numbers."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "calculator_module", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_calculator_module() { return PyModule_Create(&module); }
