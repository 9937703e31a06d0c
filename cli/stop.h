/** What ends a command early: Ctrl-C and its kin, and files that vanish under a memory map. */
#ifndef H3_CLI_STOP_H
#define H3_CLI_STOP_H

#include <h3av/h3av.h>

/** Sets the handlers, once. */
void stop_on_signals(void);

/** From now on a signal cancels what this engine runs; NULL: it ends the process. */
void stop_cancels(h3_engine *e);

/** Has somebody asked to stop? Between two requests of a batch no engine is there to hear it. */
bool stop_is_asked(void);

#endif
