# Arithmetic in the reference's order; the top file turns contraction off for all rooms.
room(plan FILES plan.c canvas.c frames.c sigmas.c layout.c rows.c noise.c tiles.c USES base LIBS m)
if(EXISTS ${CMAKE_SOURCE_DIR}/tests/unit/test_plan.c)
    unit_test(plan FILES tests/unit/test_plan.c USES plan base)
endif()
