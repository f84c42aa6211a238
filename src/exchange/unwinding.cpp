/// A thread that Python ends while it is in C++ frames of this module.
#include <unwind.h>

#include "exchange/closing.h"
#include "exchange/python.h"

// Once the interpreter is gone, CPython before 3.14 ends every other thread at the next moment it asks for the GIL, by
// pthread_exit, which unwinds the stack. C++ frames would drop references on the way, without the GIL, and one that
// lets no exception through would abort the process. The unwinder asks the personality routine of each C++ frame what
// is to be done there. The linker puts this one in its place (`--wrap`, in CMakeLists.txt): at our first frame the
// thread stays where it is, as CPython 3.14 leaves it.
extern "C" _Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions,
                                                           _Unwind_Exception_Class kind, _Unwind_Exception* exception,
                                                           _Unwind_Context* context);

extern "C" _Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions,
                                                           _Unwind_Exception_Class kind, _Unwind_Exception* exception,
                                                           _Unwind_Context* context) {
  if ((actions & _UA_FORCE_UNWIND) && interop::exchange::interpreter_is_gone()) interop::exchange::sleep_for_ever();
  return __real___gxx_personality_v0(version, actions, kind, exception, context);
}
