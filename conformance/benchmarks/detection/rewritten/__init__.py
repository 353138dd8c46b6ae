"""The steps of a BERT written in other ways, all of them right."""
