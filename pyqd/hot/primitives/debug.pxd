# The one switch between a release and a debug build.
#
# PYQD_DEBUG is a C macro, 0 unless the compiler was given -DPYQD_DEBUG=1. `if PYQD_DEBUG:` therefore costs nothing in a
# release: the C compiler drops the branch. It is no Python value and no Cython compile-time name.

cdef extern from *:
    """
    #ifndef PYQD_DEBUG
    #define PYQD_DEBUG 0
    #endif

    #if PYQD_DEBUG
    #include <stdio.h>
    #include <stdlib.h>
    #define pyqd_debug_require(condition)                                                            \\
        do {                                                                                         \\
            if (!(condition)) {                                                                      \\
                fprintf(stderr, "%s:%d: %s: broken precondition\\n", __FILE__, __LINE__, __func__);   \\
                abort();                                                                             \\
            }                                                                                        \\
        } while (0)
    #else
    #define pyqd_debug_require(condition) ((void)0)
    #endif
    """
    const int PYQD_DEBUG

    # For functions that cannot raise (`noexcept nogil`): in a debug build a false condition prints C file, line and
    # function and aborts. A release does not even compute the condition.
    void debug_require "pyqd_debug_require" (bint condition) noexcept nogil
