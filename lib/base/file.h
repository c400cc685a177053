/* SPDX-License-Identifier: Apache-2.0 */
/* Files: mapped, read as streams and lines, written atomically; folders and paths. */
#ifndef TUNE_FILE_H
#define TUNE_FILE_H

#include <errno.h>

#include "lib/base/arena.h"
#include "lib/base/str.h"

/* Repeats a system call while it fails with EINTR. On network and FUSE file systems every call can. */
#define UNTIL_DONE(call)                     \
    (__extension__({                         \
        int done_;                           \
        do done_ = (int)(call);              \
        while (done_ < 0 && errno == EINTR); \
        done_;                               \
    }))

/* A path may be NULL, as a full arena returns it after it has recorded the failure. The functions then return ST_RESOURCE or false. */

typedef struct Mapping {
    const uint8_t *data;
    size_t size;
} Mapping;
Status file_map(const char *path, Mapping *mapping); /* read-only; an empty file gives size 0 and data NULL. ST_INPUT when missing */
/* ST_INPUT when `bytes`, the first n of the file, look like the pointer text that Git LFS leaves in place of a large file. file_map and stream_open
 * call it. */
Status file_check_pointer(const char *path, const void *bytes, size_t n);
void file_unmap(Mapping *mapping);
/* These bytes are not needed for now: the system may reclaim their memory. */
void file_drop_pages(const Mapping *mapping, size_t begin, size_t end);
/* Another program may truncate a mapped file. After file_handle_truncation, bytes that were cut off read as zeros instead of ending this program by
 * SIGBUS. Call file_check_truncation before storing or reporting a result: it is ST_INPUT once such bytes were read, until file_ignore_truncation. */
void file_handle_truncation(void);
Status file_check_truncation(void);
/* For a file whose bytes are read during the whole run, such as weights: file_check_truncation then also warns, once, when the file was changed. */
void file_watch_truncation(const Mapping *mapping);
/* For a file whose lost bytes do no harm. If the first lost bytes were in this file, clears the record of them and returns true. */
bool file_ignore_truncation(const Mapping *mapping);
/* stat, lstat and realpath; the caller frees the path. If the system cannot say whether the file exists (EIO, ESTALE, no memory), the failure is
 * recorded for memory_check (memory.h). The same holds for file_exists, dir_exists and all functions that use them. */
struct stat;
int file_stat(const char *path, struct stat *info);
int file_lstat(const char *path, struct stat *info);
char *path_real(const char *path);
bool file_exists(const char *path);
/* Like file_exists, but a broken link is ST_INPUT: it shows that the file should be there. */
Status file_find(const char *path, bool *there);
bool dir_exists(const char *path);
bool same_folder(const char *a, const char *b);              /* through links too; false when one is missing */
Status file_read(const char *path, size_t limit, Str *text); /* the contents, unpacked as by ByteStream; longer than `limit` bytes is ST_INPUT */

/* Bytes of a file from its beginning. gzip and zstd are recognised by the first bytes and unpacked. A file named .gz or .zst must be packed so. */
typedef struct ByteStream ByteStream;
Status stream_open(const char *path, ByteStream **stream);
ptrdiff_t stream_read(ByteStream *stream, void *bytes, size_t size); /* bytes read; 0: the end; -1: see stream_fault */
/* Records why stream_read failed and returns the status: "cannot unpack 'PATH'PLACE: it ends too early"; place: "" or e.g. " after line 3". */
Status stream_fault(const ByteStream *stream, const char *place);
void stream_close(ByteStream *stream);

/* Lines of a text file, packed or not, of up to 1 GiB each, without '\n' and a '\r' before it. */
typedef struct Lines {
    ByteStream *stream;
    char *path;
    Str buffer;
    size_t start, number; /* number: of the line returned last, from 1 */
    bool ended;
    Status status;
} Lines;
Status lines_open(Lines *lines, const char *path);
bool lines_next(Lines *lines, Slice *line); /* false at the end or on an error; the slice is valid until the next call */
Status lines_close(Lines *lines);           /* returns the read error, if any */

/* A file that is written atomically: as .NAME.tmp-PID in the same folder, synced, then renamed. A full disk is ST_RESOURCE (a program with a file
 * size limit must ignore SIGXFSZ for that). */
typedef struct FileWriter {
    int fd;
    char *path, *temporary;
    uint8_t *buffer;
    size_t used;
    uint64_t written;
    uint32_t crc; /* zlib's crc32 of all bytes */
    int error;
    Status status;
} FileWriter;
Status writer_open(FileWriter *writer, const char *path);
/* For results, where the later one would replace the other: ST_CONFIG, and the writer is abandoned, when another process is writing the same
 * file. */
Status writer_alone(FileWriter *writer);
void writer_write(FileWriter *writer, const void *bytes, size_t size); /* a failure is kept and returned by writer_commit */
void writer_printf(FileWriter *writer, const char *format, ...) PRINTF_LIKE(2, 3);
Status writer_flush(FileWriter *writer);  /* writes the buffer and returns the first failure so far */
Status writer_commit(FileWriter *writer); /* flush, fsync, rename, fsync of the folder */
/* Instead of writer_commit, also after a failure: keeps the complete lines so far as PATH.partial and returns their number. 0: there are none, and no
 * file. Records no failure of its own. */
size_t writer_keep_lines(FileWriter *writer);
void writer_abandon(FileWriter *writer);                                 /* removes the temporary file; harmless after commit */
Status file_write_all(const char *path, const void *bytes, size_t size); /* open, write and commit */
Status file_append(const char *path, const void *bytes, size_t size);    /* adds to the end; a short write is undone and ST_RESOURCE */
/* ST_RESOURCE for a link: files that grow are not written through links. file_append and file_truncate open with O_NOFOLLOW as well. */
Status file_refuse_link(const char *path);
Status file_truncate(const char *path, uint64_t size); /* ST_INPUT when the file is already shorter */
Status file_copy(const char *from, const char *to);    /* atomically */

Status dir_make(const char *path);                   /* with parents; existing is fine. ST_RESOURCE */
Status dir_check_creatable(const char *path);        /* the failure that dir_make would return, as far as can be known without creating anything */
Status dir_remove(const char *path);                 /* with its contents; missing is fine */
Status dir_rename(const char *from, const char *to); /* and syncs the parent */
Status dir_sync(const char *path);
Status dir_sync_above(const char *path); /* syncs the folder that contains `path`, so that its name is on disk */
/* Renames a file or folder to the first free name of PATH.1, PATH.2, ..., durably and without replacing anything; appends the new name to *kept.
 * The target of a link is renamed, not the link, and an empty folder takes its place so that the link stays valid. ST_CONFIG when it is this
 * program's working folder; otherwise the system's error. */
Status path_backup(const char *path, Str *kept);
bool path_inside(const char *path, const char *dir); /* through links too; a folder is inside itself; false if one of them is missing */
Status dir_sync_tree(const char *path); /* syncs every file and folder below it, and the folder itself, so that they survive a power cut */
int file_close(int fd);                 /* closes a file that was written to: 0, or -1 with errno; an interrupting signal is no failure */
int file_sync(int fd);                  /* fsync, and through the drive's cache where the system can; 0, or -1 with errno */
Status dir_list(const char *path, Arena *arena, char ***names, size_t *count); /* sorted, without . and .. */
/* Builds `dir` atomically: `write` fills the hidden folder `made` in the same parent, which then replaces `dir`; the old folder is deleted last. A
 * failure leaves everything unchanged and is `write`'s own or ST_RESOURCE. ST_CONFIG: another process is building it. */
Status dir_build(const char *dir, Status (*write)(void *context, const char *made), void *context);
/* The same, but keeps the old folder under the name that path_backup gives it, appended to *kept; *kept stays unchanged when there was none. */
Status dir_build_with_backup(const char *dir, Status (*write)(void *context, const char *made), void *context, Str *kept);
/* Calls work(context), which writes related files to `dir`, while it locks out other processes that do so or build `dir`. ST_CONFIG: one does. */
Status dir_alone(const char *dir, Status (*work)(void *context), void *context);
/* ST_RESOURCE when this folder's disk has less than `bytes` free; ST_OK when the file system does not say. */
Status dir_check_space(const char *path, uint64_t bytes);
char *path_join(Arena *arena, const char *dir, const char *name); /* NULL: no memory, or an argument is NULL */
const char *path_name(const char *path);                          /* the part after the last slash */

#endif
