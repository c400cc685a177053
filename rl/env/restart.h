/* The pause before a program that has died is started again. */
#ifndef TUNE_RESTART_H
#define TUNE_RESTART_H

#include "lib/base/base.h"

/* Seconds to wait after so many failures in a row (1 or more): 0.1 after the first, twice as long after each further one, never longer than 5 or
 * `most`, the time that the program has for an answer. */
double restart_pause(int64_t failures, double most);
/* Sleeps so long; an interrupt ends it. */
void restart_wait(double seconds);

#endif
