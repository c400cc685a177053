/* SPDX-License-Identifier: Apache-2.0 */
/* Between the program and a plug-in with the transport of an MPI library. The program links no MPI: it loads the plug-in of the launcher that started
 * it. A plug-in calls nothing of the program but these functions. */
#ifndef TUNE_COMM_PLUGIN_H
#define TUNE_COMM_PLUGIN_H

#include "lib/comm/comm.h"

/* What the program gives a plug-in */
typedef struct CommHostCalls {
    Status (*fail)(Status code, const char *format, ...) PRINTF_LIKE(2, 3); /* status_fail */
    int (*exit_code)(Status code);                                          /* status_exit_code */
} CommHostCalls;
/* Starts the library and makes the transport of its world, which CommTransport.close frees. ST_RESOURCE: it cannot start. A program calls it at most
 * once. */
typedef Status CommPluginOpen(const CommHostCalls *calls, CommTransport **transport);
/* The symbol that a plug-in exports. Its number changes with CommTransport, so that an old plug-in is not loaded. */
#define COMM_PLUGIN_SYMBOL "comm_plugin_open_1"
CommPluginOpen comm_plugin_open_1;

#endif
