# Stubs made from the bare module _core say heddle._core.
foreach(stub __init__ spec)
  file(READ ${STUBS}/${stub}.pyi text)
  string(REPLACE "from _core import" "from heddle._core import" text "${text}")
  string(REPLACE "import _core\n" "import heddle._core\n" text "${text}")
  string(REPLACE ": _core." ": heddle._core." text "${text}")
  file(WRITE ${STUBS}/${stub}.pyi "${text}")
endforeach()
