/* A machine that is short of memory or files for a moment gets that moment, and a program that dies at once does not keep a processor busy with its
 * starts. */
#include "rl/env/restart.h"

#include <math.h>
#include <time.h>

double restart_pause(int64_t failures, double most) { return fmin(fmin(0.1 * ldexp(1, (int)MIN(failures - 1, 30)), 5), most); }

void restart_wait(double seconds) {
    double until = clock_seconds() + seconds;
    for (double left; !interrupt_requested() && (left = until - clock_seconds()) > 0;)
        nanosleep(&(struct timespec){.tv_nsec = (long)(fmin(left, 0.05) * 1e9)}, NULL);
}
