/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what a power cut would lose. A test that links this gets wrappers of fsync and rename, which record how much of each file and which names of
 * each folder were synced. (POSIX guarantees no more: syncing a file does not sync its name.)
 *
 *     durable_begin("finished.json", 0);
 *     check_ok(sft_run(&config, &result));
 *     assert_string_equal(durable_lost(), "");      // all files were on the disk when "finished.json" got its name
 */
#ifndef TUNE_DURABLE_H
#define TUNE_DURABLE_H

/* Starts recording. last: the file whose renaming is the moment to judge. above: check the files below the folder that is so many levels above
 * that of `last`. */
void durable_begin(const char *last, int above);
void durable_again(const char *last, int above); /* the same, keeping the records so far */
/* The paths, each followed by a blank, of files below that folder that were not completely synced, or whose name was not synced, when `last` got
 * its name; "never" if it did not. */
const char *durable_lost(void);

#endif
