/* SPDX-License-Identifier: Apache-2.0 */
/* What a command is and takes, as data: read by --help, by completion in shells and by the manual page, so none of them can go stale.
 *
 *     static void count(void *context, const CommandView *view) { *(size_t *)context += view->n_own; }
 *     size_t n_options = 0;
 *     TRY(command_describe(info, count, &n_options));   // goes as far as --help does
 */
#ifndef TUNE_HELP_H
#define TUNE_HELP_H

#include "cmd/app/options.h"
#include "cmd/app/commands.h"
#include "lib/train/keys.h"

/* The first n_own options are its own */
typedef struct CommandView {
    const Command *command;
    const Option *options;
    size_t n_own, n;
} CommandView;
typedef void CommandReader(void *context, const CommandView *view);
/* Hands the view of a command over while the call lasts. */
Status command_describe(const CommandInfo *info, CommandReader *reader, void *context);
const char *command_words(const Command *command); /* its name behind the program's: "data check" */
void help_answer(const CommandView *view);         /* of command_parse, on --help */
/* Folded to the terminal, or to 80 columns. Keys of more than some hundred lines are listed by their names, unless the whole is asked for. */
void print_help(const CommandView *view, bool whole);
/* Pieces of it: the keys of a section that a command takes (NULL: all), one key, paragraphs. */
void help_section(Str *out, const Command *command, const char *section);
void help_key(Str *out, const Key *key);
void help_text(Str *out, const char *text);
/* Words behind what stands in the last line of `out`, further lines from `column` on; without the last line's end. */
void help_fold(Str *out, const char *words, int column, int width);
/* `tune help TOPIC`, `tune help COMMAND TOPIC`: a key, a section, an algorithm, `all`. ST_USAGE: there is none. */
Status help_topic(const CommandInfo *info, const char *topic);
void print_commands(const CommandGroup *group);

/* Pieces of a help text. A line that begins with four spaces is an example; one with a name, two spaces or more, and words is an entry of a list; any
 * other one is a paragraph. */
typedef enum BlockKind { BLOCK_PARAGRAPH, BLOCK_ENTRY, BLOCK_EXAMPLE } BlockKind;
typedef struct Block {
    BlockKind kind;
    int indent;
    Slice name, text;
} Block;                                        /* name: of an entry */
bool help_block(const char **at, Block *block); /* false at the end of the text */
/* By its section ("" is the top level), of Command.sections; `reward` is a section of its own there. */
bool command_takes_key(const Command *command, const Key *key);

Status print_manual(void); /* man page tune(1), man macros */

#endif
