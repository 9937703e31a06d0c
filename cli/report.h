/** How commands say what went wrong: one sentence on standard error, an event with --json, and the
 * exit status. */
#ifndef H3_CLI_REPORT_H
#define H3_CLI_REPORT_H

#include "args.h"

/** The exit status of a result; documented in h3av help and the man page. */
int report_status(h3_status st);

/** Says h3_error() and returns the exit status. */
int report_failed(const cli *c, h3_status st);

/** Says a sentence of the program's own and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int report_said(int status, const char *fmt, ...);

/** Sentences of report_said go to out[cap] from now on; NULL: to standard error again. */
void report_into(char *out, size_t cap);

/** The event of an error on standard output, with a number called `unit` ("line") if that is not
 *  NULL. */
void report_event(const char *code, const char *unit, long number, const char *text);

#endif
