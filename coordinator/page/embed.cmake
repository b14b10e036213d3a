# coordinator/page/embed.cmake - writes OUT: for each of FILES in FOLDER an array of its bytes, EMBEDDED_page_css for page.css,
# and the beginning of its SHA-256, EMBEDDED_page_css_ETAG.
set(text "")
foreach(file ${FILES})
  string(MAKE_C_IDENTIFIER ${file} name)
  file(READ ${FOLDER}/${file} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  file(SHA256 ${FOLDER}/${file} digest)
  string(SUBSTRING ${digest} 0 16 digest)
  string(APPEND text "static const unsigned char EMBEDDED_${name}[] = {${bytes}};\n"
                     "static const char EMBEDDED_${name}_ETAG[] = \"\\\"${digest}\\\"\";\n")
endforeach()
file(WRITE ${OUT} "${text}")
