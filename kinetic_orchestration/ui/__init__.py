"""The page of `kinor ui`: a server on this machine, for one person, that shows a store and changes nothing in it."""
