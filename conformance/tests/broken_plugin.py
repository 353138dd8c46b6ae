raise ImportError("this plug-in cannot be imported")
