# pyqd/hot/net/native_stack.pxd: nothing for other compiled modules. Design notes: pyx/net/native_stack.pyx.
