# pyqd/hot/outermost.pxd: nothing for other compiled modules. Design notes: pyx/outermost.pyx.
