/* SPDX-License-Identifier: Apache-2.0 */
/* The page at "/": a chat that needs nothing from elsewhere. */
#ifndef TUNE_SERVE_PAGE_H
#define TUNE_SERVE_PAGE_H

extern const char serve_page[];

#endif
