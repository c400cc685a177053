/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a command as data. --help, shell completion and the manual page are all made from it, so they cannot disagree.
 *
 *     static void count(void *context, const CommandView *view) { *(size_t *)context += view->n_own; }
 *     size_t n_options = 0;
 *     TRY(command_describe(info, count, &n_options));   // runs the command's code up to --help
 */
#ifndef TUNE_HELP_H
#define TUNE_HELP_H

#include "cmd/app/options.h"
#include "cmd/app/commands.h"
#include "lib/recipe/keys.h"

/* options: the first n_own of the n options are the command's own, the rest are those of every command. */
typedef struct CommandView {
    const Command *command;
    const Option *options;
    size_t n_own, n;
} CommandView;
typedef void CommandReader(void *context, const CommandView *view);
/* Calls `reader` once with the view of a command. The view is valid during that call only. */
Status command_describe(const CommandInfo *info, CommandReader *reader, void *context);
const char *command_words(const Command *command); /* its name without the program's: "data check" */
void help_answer(const CommandView *view);         /* command_parse calls it on --help: prints, or calls the reader of command_describe */
/* Prints the help of a command, wrapped to the terminal or to 80 columns. If its recipe keys take more than 300 lines, only their names are
 * listed, unless `whole` is set. */
void print_help(const CommandView *view, bool whole);
/* Append parts of it: the keys of a section (of those that `command` takes; NULL: of all), one key, a help text. */
void help_section(Str *out, const Command *command, const char *section);
void help_key(Str *out, const Key *key);
void help_text(Str *out, const char *text);
/* Appends words to the last line of `out`, wrapped; further lines begin at `column`. The last line gets no '\n'. */
void help_fold(Str *out, const char *words, int column, int width);
/* `tune help TOPIC` (info NULL) and `tune help COMMAND TOPIC`: explains a recipe key, a section, an algorithm, or `all`. ST_USAGE for an unknown
 * topic. */
Status help_topic(const CommandInfo *info, const char *topic);
void print_commands(const CommandGroup *group);

/* A block is one line of a help text. A line that begins with four spaces is an example. An indented line with a name, two or more spaces, and a
 * description is an entry of a list. Any other line is a paragraph. */
typedef enum HelpKind { BLOCK_PARAGRAPH, BLOCK_ENTRY, BLOCK_EXAMPLE } HelpKind;
typedef struct Block {
    HelpKind kind;
    int indent;
    Slice name, text;
} Block;                                        /* name: only of an entry */
bool help_block(const char **at, Block *block); /* false at the end of the text */
/* Whether the key's section ("" is the top level) is in Command.sections. The top-level key `reward` counts as a section of that name. */
bool command_takes_key(const Command *command, const Key *key);

Status print_manual(void); /* prints the manual page tune(1), in man macros */

#endif
