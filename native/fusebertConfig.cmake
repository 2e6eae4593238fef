# For find_package(fusebert): the target fusebert::fusebert is the library in this package, called through fusebert.h.
if(NOT TARGET fusebert::fusebert)
  get_filename_component(_fusebert "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
  add_library(fusebert::fusebert SHARED IMPORTED)
  set_target_properties(fusebert::fusebert PROPERTIES
    IMPORTED_LOCATION "${_fusebert}/libfusebert.so.1"
    INTERFACE_INCLUDE_DIRECTORIES "${_fusebert}/include")
  unset(_fusebert)
endif()
