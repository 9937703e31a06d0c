/** Shared by the files behind the public calls. */
#ifndef H3_PIPELINE_TOOLS_H
#define H3_PIPELINE_TOOLS_H

/** Makes the built-in model known to the file layer; harmless when repeated. */
void h3_register_builtin(void);

#endif
