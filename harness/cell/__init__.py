"""The half of bitmatrix that runs inside a stack.

Every framework's Python imports it, so it uses the standard library, numpy and safetensors alone (torch only
through a candidate), runs on Python 3.10 and newer, and never imports the host half.
"""
