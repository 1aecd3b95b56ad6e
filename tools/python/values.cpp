#include "tools/python/values.h"

namespace anymesh::python {
namespace {

namespace nb = nanobind;
using Wrap = std::function<nb::object(const TensorRecord&)>;

nb::dict to_dict(const std::vector<Value::Entry>& entries, const Wrap& wrap) {
  nb::dict dict;
  for (const auto& [key, value] : entries) {
    // A dict or list cannot be a key; pickle's format could hold it all the same.
    nb::object name = to_python(key, wrap);
    if (PyObject_Hash(name.ptr()) == -1) {
      PyErr_Clear();
      name = nb::repr(name);
    }
    dict[name] = to_python(value, wrap);
  }
  return dict;
}

nb::list to_list(const std::vector<Value>& items, const Wrap& wrap) {
  nb::list list;
  for (const Value& item : items) list.append(to_python(item, wrap));
  return list;
}

nb::object to_namespace(const Value& object, const Wrap& wrap) {
  const nb::object made = nb::module_::import_("argparse").attr("Namespace")();
  const auto& state = object.as_object().state;
  const auto entries = state && state->is_dict() ? object.entries() : object.as_object().entries;
  for (const auto& [key, value] : entries)
    if (key.is_string()) nb::setattr(made, to_str(key.as_string()), to_python(value, wrap));
  return made;
}

}  // namespace

nb::str to_str(const std::string& text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

std::string to_bytes(const nb::str& text) {
  const auto bytes =
      nb::steal<nb::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {bytes.c_str(), bytes.size()};
}

nb::list to_list(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(to_str(text));
  return list;
}

nb::object to_python(const Value& value, const Wrap& wrap) {
  using Kind = Value::Kind;
  switch (value.kind()) {
    case Kind::kNone:
      return nb::none();
    case Kind::kBool:
      return nb::bool_(value.as_bool());
    case Kind::kInt:
      return nb::int_(value.as_int());
    case Kind::kBigInt: {
      const nb::bytes digits(value.as_bytes().data(), value.as_bytes().size());
      return nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
          .attr("from_bytes")(digits, "little", nb::arg("signed") = true);
    }
    case Kind::kFloat:
      return nb::float_(value.as_double());
    case Kind::kString:
      return to_str(value.as_string());
    case Kind::kBytes:
      return nb::bytes(value.as_bytes().data(), value.as_bytes().size());
    case Kind::kList:
    case Kind::kSet:
      return to_list(value.items(), wrap);
    case Kind::kTuple:
    case Kind::kSize:
      return nb::tuple(to_list(value.items(), wrap));
    case Kind::kDict:
    case Kind::kOrderedDict:
      return to_dict(value.entries(), wrap);
    case Kind::kTensor:
      return wrap(value.as_tensor());
    case Kind::kGlobal:
      return to_str(value.as_global().module + "." + value.as_global().name);
    case Kind::kObject:
      return to_namespace(value, wrap);
  }
  return nb::none();
}

}  // namespace anymesh::python
