/* SPDX-License-Identifier: Apache-2.0 */
/* What a power cut would leave. A test that calls these has an fsync and a rename of its own, which note how much of each file was synced, and which
 * names of each folder (POSIX's minimum: a file's sync does not keep its name).
 *
 *     durable_begin("finished.json", 0);
 *     check_ok(sft_run(&config, &result));
 *     assert_string_equal(durable_lost(), "");      // what was not on the disk when that file got its name
 */
#ifndef TUNE_DURABLE_H
#define TUNE_DURABLE_H

/* above: how many folders above the one of `last` what is looked at begins */
void durable_begin(const char *last, int above);
void durable_again(const char *last, int above); /* the same with what is known so far */
/* Paths, each with a blank behind it, of files below that folder that were longer than what was synced, or had no name there, as it was
 * renamed to that; "never" when it was not. */
const char *durable_lost(void);

#endif
