add_executable(h3av cli/main.c cli/args.c cli/progress.c cli/ranks.c)
target_link_libraries(h3av PRIVATE h3)
