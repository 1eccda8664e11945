"""Function calls at the root of a native stack, so that profilers do not mix the frames of two greenlets.

All greenlets of a thread share one C stack. Below the first frame of a greenlet lie frames of the greenlet that started
it, or later frames at the same place, and a native unwinder walks on into them. The chain of Python frames ends at the
greenlet's first frame. py-spy merges both, finds that they do not fit and drops the sample.

Here the unwind table marks one frame as without a caller, as the C library does for the first function of a thread;
unwinders stop there. Nothing else changes: the function returns to its caller as ever, and an exception of Python is a
return value to C. Only a C++ exception could not pass, and none goes through Python's interpreter.

Source: DWARF 5, 6.4.4: an undefined rule for the return address marks the outermost frame.
"""

cdef extern from *:
    """
    #if defined(__x86_64__)
    #define PYQD_NO_CALLER ".cfi_undefined rip"
    #elif defined(__aarch64__)
    #define PYQD_NO_CALLER ".cfi_undefined x30"
    #else
    #define PYQD_NO_CALLER ""
    #endif

    static __attribute__((noinline)) PyObject* pyqd_call_at_root(PyObject* function, PyObject* args) {
        PyObject* result;
        __asm__ volatile(PYQD_NO_CALLER);
        result = PyObject_CallObject(function, args);
        /* Not a jump: the frame must stay. */
        __asm__ volatile("" ::: "memory");
        return result;
    }
    """
    object pyqd_call_at_root(object function, object args)


def call_at_root(function, *args):
    """Return function(*args). Native stack traces end here. Raises, and switches: as the function does."""
    return pyqd_call_at_root(function, args)
