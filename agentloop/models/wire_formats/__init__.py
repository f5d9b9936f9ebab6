"""Wire formats, one module or package each; the table `wire_format.WIRE_FORMATS` names them."""
