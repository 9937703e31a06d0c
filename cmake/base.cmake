room(base FILES status.c arena.c file.c LIBS m Threads::Threads)
