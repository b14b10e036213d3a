# SPDX-License-Identifier: Apache-2.0
"""The hot loops of the compiled kernels take no more instructions than tests/bench/sass_bounds.txt allows; and
tests/bench/sass.py finds the loops and counts them. MILLRACE_CUDA_KERNELS is the folder of the compiled kernels. The first
is skipped where there is no toolkit or no nvdisasm."""
import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ["MILLRACE_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "tests/bench"))
sys.path += [str(p) for p in pathlib.Path(os.environ["MILLRACE_TEST_PYTHON"]).parent.parent.glob("lib/*/site-packages")]
import sass  # noqa: E402, of the folder above

# A loop in a loop, a loop without products, and a last branch to itself, as nvdisasm prints them.
SASS = """
//--------------------- .text.k          --------------------------
k:
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_3:
        /*0010*/                   FFMA R1, R2, R3, R1 ;
.L_x_0:
        /*0020*/              @!P0 IMMA.16832.S8.S8 R4, R8.ROW, R10.COL, R4 ;
        /*0030*/                   FFMA.FTZ R1, R2, R3, R1 ;
        /*0040*/                   NOP ;
        /*0050*/               @P2 BRA `(.L_x_0) ;
        /*0060*/                   IMMA.16832.S8.S8 R4, R8.ROW, R10.COL, R4 ;
        /*0070*/                   BRA.U UP0, `(.L_x_0) ;
        /*0080*/               @P1 BRA `(.L_x_3) ;
.L_x_1:
        /*0090*/                   LDG.E R1, [R2.64] ;
        /*00a0*/               @P1 BRA `(.L_x_1) ;
        /*00b0*/               @P1 BRA `(.L_x_4) ;
.L_x_4:
        /*00c0*/                   EXIT ;
.L_x_2:
        /*00d0*/                   BRA `(.L_x_2);
        /*00e0*/                   NOP;
"""


class Counting(unittest.TestCase):
    def setUp(self):
        self.kernels = {(name, "sm_80"): sass.hot_loops(*found) for name, found in sass.instructions(SASS).items()}

    def test_loop(self):
        (loop,) = self.kernels["k", "sm_80"]
        self.assertEqual((loop.unit, loop.n_units, dict(loop.names)), ("IMMA", 2, {"IMMA": 2, "FFMA": 1, "BRA": 2}))
        self.assertEqual(loop.in_flight, 0)
        self.assertEqual(sass.per_unit(loop), 2.5)

    def test_bounds(self):
        def faults(*bounds):
            return sass.compare(self.kernels, list(bounds))[1]
        self.assertEqual(faults(("k", "IMMA", 2.5)), [])
        self.assertEqual(faults(("?", "IMMA", 2.5)), [])
        self.assertEqual(len(faults(("k", "IMMA", 2.4))), 1)
        self.assertEqual(len(faults(("k", "FFMA", 9))), 1)
        self.assertEqual(len(faults()), 1)
        self.assertEqual(len(faults(("k", "IMMA", 3), ("j", "IMMA", 3))), 1)


    def test_reads_in_flight(self):
        early = ["@P0 LDG.E.128.CONSTANT R4, desc[UR6][R2.64]", "IMMA.16832.S8.S8 R20, R8.ROW, R12.COL, R16",
                 "LDG.E.128.CONSTANT R8, desc[UR6][R2.64]", "LOP3.LUT R24, R7, 0xf, RZ, 0xc0, !PT"]
        self.assertEqual(sass.reads_in_flight(early), 1)
        self.assertEqual(sass.reads_in_flight([early[i] for i in (1, 2, 0, 3)]), 0)
        kernels = {("cuda_product_q8_0_8", "sm_90"): [sass.Loop("IMMA", 1, {}, 7)]}
        self.assertEqual(len(sass.idle_reads(kernels, sass.read_panels())), 1)
        kernels = {("cuda_product_q8_0_8", "sm_90"): [sass.Loop("IMMA", 1, {}, 8)]}
        self.assertEqual(sass.idle_reads(kernels, sass.read_panels()), [])


class Kernels(unittest.TestCase):
    def test_bounds(self):
        folder, nvdisasm = os.environ.get("MILLRACE_CUDA_KERNELS"), sass.find_nvdisasm()
        if not folder or not nvdisasm:
            self.skipTest("there is no " + ("nvdisasm; deploy/check installs it" if folder else "CUDA toolkit"))
        self.assertEqual(sass.main([folder, "--nvdisasm", nvdisasm]), 0)


if __name__ == "__main__":
    unittest.main()
