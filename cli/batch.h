/**
 * h3av generate --batch FILE, and --count N: many requests by one engine, which keeps its parts
 * between them.
 *
 * Each line is a JSON object whose members are options of `generate` without their dashes; what a
 * line does not say is as the command line has it. A line that cannot be read or run is told with
 * its number and leaves the others alone.
 *
 * --count repeats the command line's request with the next seed and numbered names. What fails one
 * of them (a name, a disk, memory) would fail the next, so the first failure is the end.
 */
#ifndef H3_CLI_BATCH_H
#define H3_CLI_BATCH_H

#include "args.h"

/** Runs all lines, or videos. The exit status is that of the first line that failed. */
int batch_run(cli *c);

#endif
