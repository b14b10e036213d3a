# coordinator/serving/page/embed.cmake - writes OUT: for each of FILES in FOLDER an array of its bytes,
# EMBEDDED_page_css for page.css.
# SPDX-License-Identifier: Apache-2.0
set(text "")
foreach(file ${FILES})
  string(MAKE_C_IDENTIFIER ${file} name)
  file(READ ${FOLDER}/${file} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND text "static const unsigned char EMBEDDED_${name}[] = {${bytes}};\n")
endforeach()
file(WRITE ${OUT} "${text}")
