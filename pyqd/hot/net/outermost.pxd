# pyqd/hot/net/outermost.pxd: nothing for other compiled modules. Design notes: pyx/net/outermost.pyx.
