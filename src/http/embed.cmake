# Writes OUT: FILES as http::PageFiles().
set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(entries "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING ${extension} 1 -1 extension)
  set(path /${name})
  if(name STREQUAL index.html)
    set(path /)
  endif()
  file(READ ${file} body)
  string(APPEND entries "    {\"${path}\", \"${types_${extension}}\", R\"page_file(${body})page_file\"},\n")
endforeach()
file(WRITE ${OUT} "#include \"http/page.h\"

#include <array>

namespace weightcast::http {
namespace {

constexpr PageFile kFiles[] = {
${entries}};

}  // namespace

std::span<const PageFile> PageFiles() { return kFiles; }

}  // namespace weightcast::http
")
