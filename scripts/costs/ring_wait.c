/* Waits for a ring with poll(2), for programs under valgrind: that takes io_uring_enter for a call that never waits, and
 * stops all other threads meanwhile. Preloaded; only calls through the C library are seen. Not part of any program. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>

enum { GETEVENTS = 1, EXT_ARG = 8 };
/* The layout of the kernel's argument of a wait, and of its time. */
struct wait { uint64_t sigmask; uint32_t size, pad; uint64_t time; };
struct span { int64_t seconds, nanoseconds; };

static long raw(long n, long a, long b, long c, long d, long e, long f) {
    long r;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return r;
}

static long told(long r) {
    if (r >= 0 || r <= -4096) return r;
    errno = (int)-r;
    return -1;
}

long syscall(long n, ...) {
    va_list v;
    va_start(v, n);
    long a = va_arg(v, long), b = va_arg(v, long), c = va_arg(v, long);
    long d = va_arg(v, long), e = va_arg(v, long), f = va_arg(v, long);
    va_end(v);
    if (n != SYS_io_uring_enter || !(d & GETEVENTS) || c == 0) return told(raw(n, a, b, c, d, e, f));
    int limit = -1;
    if ((d & EXT_ARG) && e) {
        const struct wait *w = (const struct wait *)e;
        const struct span *s = (const struct span *)w->time;
        if (s) limit = (int)(s->seconds * 1000 + (s->nanoseconds + 999999) / 1000000);
    }
    /* Submit, wait, then let the ring post what has completed. */
    long submitted = raw(n, a, b, 0, GETEVENTS, 0, 0);
    if (submitted < 0) return told(submitted);
    struct pollfd p = { (int)a, POLLIN, 0 };
    int ready = poll(&p, 1, limit);
    if (ready < 0) return -1;
    if (ready == 0 && submitted == 0) { errno = ETIME; return -1; }
    raw(n, a, 0, 0, GETEVENTS, 0, 0);
    return submitted;
}
