"""BERTs as strangers write them: names and layouts of their own, no adaptor. Those in `mistaken` have one mistake each."""
