"""The histogram of durations as a Python object; the generator records into the C structure itself."""

from libc.string cimport memset

from pyqd.hot.tools.histogram cimport Histogram, histogram_add, histogram_quantile


cdef Histogram* check(Histogram* histogram, double share) except NULL:
    if not 0 <= share <= 1:
        raise ValueError(f"share must be 0 to 1: {share}")
    return histogram


cdef class LatencyHistogram:
    """Durations in ns, 0 to 2**42 - 1; values outside count as the nearest of these."""

    cdef Histogram histogram

    def __cinit__(self):
        memset(&self.histogram, 0, sizeof(Histogram))

    def add(self, int64_t duration_ns):
        """Count one duration."""
        histogram_add(&self.histogram, duration_ns)

    def quantile(self, double share):
        """Return the least duration that at least that share of all did not exceed, in ns, to 0.4 %.

        Returns: 0 when nothing was counted. Raises: ValueError for a share outside of 0 to 1.
        """
        return histogram_quantile(check(&self.histogram, share), share)

    @property
    def count(self):
        """Return the number of durations."""
        return self.histogram.count

    @property
    def most(self):
        """Return the longest duration in ns; 0 if there is none."""
        return self.histogram.most


cdef object copy_of(const Histogram* histogram):
    cdef LatencyHistogram made = LatencyHistogram()
    made.histogram = histogram[0]
    return made
